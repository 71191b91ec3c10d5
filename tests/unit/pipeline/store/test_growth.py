"""Growth: whatever a client may repeat leaves no more behind than doing it once, on disk and in every replica's copy."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cache.invalidation import PurgeGenerations
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store
from pipeline.text.lexicon.library import LexiconLibrary
from pipeline.types import LexiconEntry, PronunciationKind
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from tests.unit.pipeline.voices.test_library import CATALOGUE, WIDTH, record

NAMESPACES = ("cache", "lexicons", "voice-scores", "voice-loudness")
WORDS = (LexiconEntry("ACME", PronunciationKind.ALIAS, "a sea of money"),)


def purges(store: Store, folder: Path) -> Callable[[], object]:
    generations = PurgeGenerations(store)
    return lambda: (generations.purge(None), generations.purge("somebody"))


def lexicons(store: Store, folder: Path) -> Callable[[], object]:
    library = LexiconLibrary(store)
    return lambda: library.put("mine", WORDS)


def scores(store: Store, folder: Path) -> Callable[[], object]:
    (folder / "voices.yaml").write_text(CATALOGUE)
    library = VoiceLibrary(VoiceCatalogue.load(folder / "voices.yaml", WIDTH), store)
    voice = library.add("anna", record("Anna"))
    return lambda: (library.keep_score(voice, {"stability": 0.5}), library.keep_loudness("alloy", "demo", -20.0))


@pytest.mark.parametrize("prepared", [purges, lexicons, scores])
def test_what_is_repeated_is_kept_once(tmp_path: Path, prepared: Callable[[Store, Path], Callable[[], object]]):
    store = SqliteStore(tmp_path / "store.sqlite")
    again = prepared(store, tmp_path)
    sizes = []
    for _ in range(5):
        again()
        sizes.append(sum(len(entry.versions) for namespace in NAMESPACES for entry in store.changes(namespace).entries))
    assert sizes[0] == sizes[-1] > 0
