"""Scripts of `Name: text` lines."""

import pytest

from pipeline.errors import InvalidRequest
from pipeline.text.markup.dialogue import Said, read_script

CAST = ("Anna", "Mr. Ray", "小明")


def test_a_script_is_what_its_speakers_say_in_order():
    script = """
        Anna: Who is there?
        It is late, half past ten, at 22:30.
          Note: I wait.
        MR. RAY : It is me.

        小明：你好。
        https://example.com is my page.
        Anna:
        Come in.
    """
    assert read_script(script, CAST) == [
        Said("Anna", "Who is there?\nIt is late, half past ten, at 22:30.\nNote: I wait."),
        Said("Mr. Ray", "It is me."),
        Said("小明", "你好。\nhttps://example.com is my page."),
        Said("Anna", "Come in."),
    ]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("Anna: Hello.\n\nCarl: Who?", "line 3 of the script begins with a name that cast .*: .* one of the 3 names"),
        ("Anna: Hello.\nHe said: no.", "line 2 of the script begins with a name"),
        ("\nHello.", "line 2 of the script has no speaker before it"),
        ("Carl：你好", "line 1 of the script begins with a name"),
    ],
)
def test_a_line_of_nobody_is_refused_with_its_number(script, said):
    with pytest.raises(InvalidRequest, match=said) as refused:
        read_script(script, CAST)
    assert refused.value.param == "script"
    assert "Carl" not in refused.value.message
