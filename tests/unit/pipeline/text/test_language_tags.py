"""Language tags: BCP 47 forms of the languages that are known; anything else is refused or counted."""

from pipeline.text.language_tags import reading_of

READINGS = {
    "auto": ("auto", "AUTO"),
    "zh": ("zh", "ZH", "zh-CN", "zh-cn", "zh_CN", "zh-TW", "zh-Hant", "zh-Hans-SG", "cmn", "cmn-Hans-CN", "zh-cmn", "lzh"),
    "en": ("en", "en-US", "en-us", "en_GB", "EN-au", "en-US-u-ca-gregory"),
    "dialect": ("yue", "yue-Hant-HK", "zh-yue", "zh-HK", "zh-Hant-HK", "zh_MO", "wuu", "nan-TW", "hak"),
    None: ("fr", "ja-JP", "", "-", "zh-", "z", "english", "Chinese", "auto-en", "en US", "en--US", "中文", "zh\n", "x" * 40),
}


def test_every_form_of_a_known_language_is_known_and_no_other():
    assert {tag: reading_of(tag) for tags in READINGS.values() for tag in tags} == {
        tag: reading for reading, tags in READINGS.items() for tag in tags
    }
