"""Words: tables of months, abbreviations, acronyms, endings, units and signs, with their spoken forms.

Out:   constants
Never: patterns, numbers
"""

from pipeline.text.normalize.tables import row_table, word_list, word_table

MONTHS = word_list("months")
MONTH_NUMBERS = (
    {name.lower(): number for number, name in enumerate(MONTHS, 1)}
    | {name[:3].lower(): number for number, name in enumerate(MONTHS, 1)}
    | {"sept": 9}
)
ABBREVIATIONS = word_table("abbreviation")
"""English, the dot included where there is one; those that depend on their neighbours are in abbreviations"""
STATES = word_table("state")  # behind a comma
CONTRACTIONS = word_table("contraction")
SUBJECTS = frozenset(word_list("subjects"))
"""words whose 'd is had or would"""
PARTICIPLES = word_list("participles")  # that do not end in ed, and are no other form of a verb that would stand behind would
WORD_ACRONYMS = frozenset(word_list("word acronyms"))
SPELLED_ACRONYMS = frozenset(word_list("spelled acronyms"))
MIXED_CASE = word_table("mixed case")
TOP_LEVEL_DOMAINS = word_list("top level domains")
DOMAIN_WORDS = frozenset(word_list("domain words"))
FILE_ENDINGS = word_list("file endings")
PLAIN_ENDINGS = frozenset(word_list("plain endings"))
REGNAL = word_list("regnal")
NUMBERED = word_list("numbered")
FUNCTION_WORDS = frozenset(word_list("function words"))  # English sentences have them, names and labels do not
MEASURES = word_list("measures")  # what is counted: 2 before one of them is 两
STROKES = "下(?![午面方边课个周次去来所列线单载班级属])"  # the 下 of 打了3下, which is a measure if it begins no other word
UNITS = row_table("unit")  # symbol: English for one, for more, Chinese
CLOSE_UNITS = row_table("close unit")  # a single letter is a unit only directly after its number
CURRENCIES = row_table("currency")  # sign or code: English for one, for more, of its hundredth, Chinese
SCALES = word_table("scale")  # after an English amount
SIGNS = row_table("sign")  # sign: English, Chinese; for signs that no rule matched
GREEK = row_table("greek")
