"""Units: tables of the spoken names of units, currencies, scales, signs and Greek letters, in both languages.

Out:   constants
Never: patterns, numbers
"""

from pipeline.text.normalize.tables import row_table, word_table

UNITS = row_table("unit")  # symbol: English for one, for more, Chinese
CLOSE_UNITS = row_table("close unit")  # a single letter is a unit only directly after its number
CURRENCIES = row_table("currency")  # sign or code: English for one, for more, of its hundredth, Chinese
SCALES = word_table("scale")  # after an English amount
SIGNS = row_table("sign")  # sign: English, Chinese; for signs that no rule matched
GREEK = row_table("greek")
