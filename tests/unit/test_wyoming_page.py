"""The page about Wyoming names what there is."""

from serve.config.doors import WyomingConfig
from serve.doors.wyoming.messages import SynthesizeStartData, WyomingVoice
from tests.support.pages import PAGES, section

PAGE = "docs/wyoming.md"


def test_every_field_event_and_setting_is_explained():
    fields = [*(set(SynthesizeStartData.model_fields) - {"voice"}), *(f"voice.{name}" for name in WyomingVoice.model_fields)]
    for name in fields:
        assert f"`{name}`" in section(PAGE, "Events"), name
    for kind in ("describe", "ping", "select-program", "synthesize", "synthesize-start", "synthesize-chunk", "synthesize-stop"):
        assert f"| `{kind}` |" in section(PAGE, "Events")
    for name in set(WyomingConfig.model_fields) - {"port"}:
        assert f"`wyoming.{name}`" in PAGES[PAGE]
