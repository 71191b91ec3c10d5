"""Languages: numbers and signs are read in the language of their sentence, and markup is no sentence."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import normalize
from tests.support.effort import examples

CHINESE_LINES = st.sampled_from(["今天的数据如下：", "配置表", "我们一共有三个人。", "价格", "他买了很多东西"])
LABELS = st.sampled_from(
    ["", "CPU ", "iPhone ", "Total: ", "Learning rate = ", "USB Hub ", "Apple Watch ", "Model A ", "Loss "]
)
QUANTITIES = st.sampled_from(["50%", "$20", "3.5", "16GB", "10:30", "2024-05-01", "12", "1/3", "25℃", "5kg"])
ENGLISH_SENTENCES = st.sampled_from(
    ["I have {} of them.", "The result was {} in the end.", "We paid {} for it.", "Sales rose {} last quarter."]
)
ITEMS = st.sampled_from(["{}", "- {}", "* {}", "1. {}", "| {} | {} |", "> {}", "## {}", "**{}**"])
WRAPPERS = st.sampled_from(
    [
        '<p class="note of the day">{}</p>',
        "<b>{}</b>",
        '<span style="font-weight: bold of the">{}</span>',
        "<!-- that is what we have to do -->{}",
        '<div id="a" class="this is not the text">{}</div>',
    ]
)


def said(text: str, language: str = "auto") -> str:
    return normalize(text, language=language).text


@settings(max_examples=examples(40))
@given(CHINESE_LINES, LABELS, QUANTITIES, ITEMS, st.sampled_from(["", "\n第二行"]))
def test_a_line_without_a_sentence_is_read_in_the_language_of_the_lines_around(before, label, quantity, item, behind):
    text = f"{before}\n{item.replace('{}', label + quantity)}{behind}"
    assert said(text) == said(text, "zh")


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(LABELS, QUANTITIES), min_size=1, max_size=5))
def test_a_chinese_table_is_chinese_in_every_row(rows):
    text = "| 项目 | 数值 |\n|---|---|\n" + "\n".join(f"| {label} | {quantity} |" for label, quantity in rows)
    assert said(text) == said(text, "zh")


@settings(max_examples=examples(40))
@given(CHINESE_LINES, ENGLISH_SENTENCES, QUANTITIES)
def test_an_english_sentence_in_a_chinese_text_stays_english(line, sentence, quantity):
    english = sentence.format(quantity)
    assert said(english, "en") in said(f"{line}\n{english}\n{line}")


@settings(max_examples=examples(40))
@given(LABELS, QUANTITIES, st.sampled_from(["The prices are as follows.", "We have measured all of it:"]))
def test_a_line_in_an_english_text_is_english(label, quantity, sentence):
    text = f"{sentence}\n- {label}{quantity}\n{sentence}"
    assert said(text) == said(text, "en")


@settings(max_examples=examples(40))
@given(WRAPPERS, CHINESE_LINES, QUANTITIES)
def test_markup_is_no_word_of_english(wrapper, line, quantity):
    text = wrapper.format(f"{line}{quantity}")
    assert said(text) == said(text, "zh")
