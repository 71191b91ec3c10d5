"""The library: names, versions, blends, and what one process knows of what another has written."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import Conflict, InvalidRequest, StoreFull, StoreUnavailable, UnknownVoice, VoiceExists
from pipeline.store.sqlite import SqliteStore
from pipeline.store.store import Store
from pipeline.types import Voice
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import PREVIEWS, SCORES, VOICES, VoiceLibrary, blend
from pipeline.voices.records import Consent, VoiceRecord, embedding_fields, read_record, sample_fields, write_record
from pipeline.voices.seeds import draw_embedding
from pipeline.voices.strings import encode_embedding
from pipeline.voices.voice_names import ID, display_name, is_id, split_blend, split_version

WIDTH = 256
CATALOGUE = "voices: {voice-2: {seed: 2, aliases: [alloy]}, voice-5: {seed: 5}}"
NOW = "2026-01-01T00:00:00Z"


def embedding(number: int) -> np.ndarray:
    return draw_embedding(number, WIDTH)


def record(title: str, number: int = 7, **fields: object) -> VoiceRecord:
    return VoiceRecord.model_validate(
        {"title": title, "origin": "embedding", "created_at": NOW, **embedding_fields(embedding(number)), **fields}
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return SqliteStore(tmp_path / "voices.sqlite")


@pytest.fixture
def catalogue(tmp_path: Path) -> VoiceCatalogue:
    file = tmp_path / "voices.yaml"
    file.write_text(CATALOGUE)
    return VoiceCatalogue.load(file, WIDTH)


@pytest.fixture
def library(catalogue: VoiceCatalogue, store: Store) -> VoiceLibrary:
    return VoiceLibrary(catalogue, store, max_voices=5, allow_inline=True)


def same(voice: Voice, numbers: np.ndarray) -> bool:
    return voice.embedding is not None and np.array_equal(voice.embedding.view(np.uint16), numbers.view(np.uint16))


def test_every_way_to_name_a_voice(library: VoiceLibrary):
    library.add("anna", record("Anna from accounting"))
    for name in ("anna", "anna@1", "Anna from accounting"):
        assert same(library.get(name), embedding(7))
        assert library.canonical(name) == "anna@1"
    assert library.canonical("alloy") == "voice-2"
    assert library.canonical("seed:9") == "seed:9"
    assert library.canonical(None) == "default"
    inline = "emb:" + encode_embedding(embedding(3))
    assert same(library.get(inline), embedding(3))
    assert library.canonical(inline) == inline
    assert library.canonical("blend:alloy(0.50)+anna(1)") == "blend:anna@1(1)+voice-2(0.5)"
    for name in ("bert", "anna@2", "anna@0", "anna@1@1", "", "../anna", "seed:-1", "temporary:" + "0" * 32, "a" * 5000):
        with pytest.raises(UnknownVoice) as refused:
            library.canonical(name)
        assert "anna" not in refused.value.message
        assert "bert" not in refused.value.message


def test_names_of_stored_voices_come_before_public_ones_and_in_any_case(tmp_path: Path, store: Store):
    file = tmp_path / "voices.yaml"
    file.write_text(f"{CATALOGUE}\npublic_names: {{vendor: {{voice-5: [Vivian, Tara]}}}}")
    library = VoiceLibrary(VoiceCatalogue.load(file, WIDTH), store)
    assert [library.canonical(name) for name in ("ALLOY", "tara", "vivian+alloy")] == [
        *("voice-2", "voice-5"),
        "blend:voice-2(1)+voice-5(1)",
    ]
    library.add("vivian", record("Viv"))
    assert [library.canonical(name) for name in ("vivian", "VIVIAN", "viv")] == ["vivian@1"] * 3
    library.add("Anna", record("first"))
    library.add("anna", record("second", 8))
    assert [library.canonical(name) for name in ("Anna", "anna", "SECOND")] == ["Anna@1", "anna@1", "anna@1"]
    with pytest.raises(UnknownVoice):
        library.canonical("ANNA")  # which of the two


def test_a_refusal_names_voices_that_exist(library: VoiceLibrary):
    with pytest.raises(UnknownVoice) as refused:
        library.canonical("somebody-else")
    named = refused.value.message.partition("there are ")[2].partition(" and others")[0].split(", ")
    assert named == ["default", "alloy", "voice-5"]
    assert all(library.canonical(name) for name in named)
    assert "somebody" not in refused.value.message


def test_an_edit_makes_a_version_and_the_old_one_stays(library: VoiceLibrary):
    first = library.add("anna", record("Anna", 7), b"sound")
    second = library.edit(first, record("Anna II", 8, gain_db=3.0))
    assert (second.name, library.canonical("anna")) == ("anna@2", "anna@2")
    assert same(library.get("anna@1"), embedding(7))
    assert same(library.get("anna"), embedding(8))
    assert (library.get("anna@1").gain_db, library.get("anna").gain_db) == (0.0, 3.0)
    assert library.preview(first) == b"sound"
    assert library.preview(second) is None
    with pytest.raises(Conflict):
        library.edit(first, record("Anna III"))


def test_a_deleted_voice_is_gone_and_its_versions_never_come_back(library: VoiceLibrary, store: Store):
    first = library.add("anna", record("Anna"), b"sound")
    library.keep_score(first, {"stability": 0.5})
    assert library.info(first).stability == 0.5
    library.delete("anna")
    with pytest.raises(UnknownVoice):
        library.get("anna@1")
    with pytest.raises(UnknownVoice):
        library.delete("anna")
    assert [store.changes(namespace).entries for namespace in (VOICES, PREVIEWS, SCORES)] == [(), (), ()], "no byte stays"
    again = library.add("anna", record("Another Anna", 9))
    assert again.name == "anna@2"
    assert library.info(again).stability is None


def test_versions_are_counted_not_their_numbers(library: VoiceLibrary, store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.voices.library.MAX_VERSIONS", 2)
    library.edit(library.add("anna", record("Anna"), b"one"), record("Anna"), b"two")
    library.delete("anna")
    second = library.edit(library.add("anna", record("Anna"), b"one"), record("Anna"), b"two")
    assert second.name == "anna@4"
    with pytest.raises(InvalidRequest, match="has 2 versions; the limit is 2"):
        library.edit(second, record("Anna"))
    library.delete("anna")
    assert store.changes(PREVIEWS).entries == ()


@pytest.mark.parametrize(
    ("voice_id", "title"), [("alloy", "x"), ("voice-2", "x"), ("default", "x"), ("anna", "x"), ("x", "Anna")]
)
def test_names_are_given_once(library: VoiceLibrary, voice_id: str, title: str):
    library.add("anna", record("Anna"))
    with pytest.raises(VoiceExists):
        library.add(voice_id, record(title))


@pytest.mark.parametrize(
    "voice_id", ["", "a b", "../x", "a/b", ".", "..", "random", "blend", "a" * 65, "seed:1", "a@1", "安娜"]
)
def test_ids_are_harmless(library: VoiceLibrary, voice_id: str):
    with pytest.raises(InvalidRequest):
        library.add(voice_id, record("Anna"))


def test_there_is_an_end_to_voices(library: VoiceLibrary):
    for number in range(5):
        library.add(f"v{number}", record(f"V {number}"))
    with pytest.raises(VoiceExists, match="max_voices"):
        library.add("one-more", record("One more"))


def test_without_a_store_nothing_is_kept_and_everything_else_works(catalogue: VoiceCatalogue):
    library = VoiceLibrary(catalogue)
    assert library.canonical("blend:alloy(1)+seed:1(1)") == library.canonical("alloy+seed:1")
    assert library.canonical("blend:alloy(2.5)+seed:1(1)") == library.canonical("alloy(2.5)+seed:1")
    assert not library.refresh()
    with pytest.raises(StoreUnavailable):
        library.add("anna", record("Anna"))
    with pytest.raises(InvalidRequest, match="switched off"):
        library.get("emb:" + encode_embedding(embedding(3)))


def test_what_one_process_writes_another_reads(catalogue: VoiceCatalogue, store: Store, library: VoiceLibrary):
    other = VoiceLibrary(catalogue, store)
    library.add("anna", record("Anna"))
    assert other.refresh()
    assert same(other.get("anna"), embedding(7))
    assert [info.name for info in other.list()] == ["default", "voice-2", "voice-5", "anna"]


def test_a_record_of_another_checkpoint_is_left_out(catalogue: VoiceCatalogue, store: Store, library: VoiceLibrary):
    wide = VoiceRecord.model_validate(
        {"title": "Wide", "origin": "seed", "created_at": NOW, **embedding_fields(draw_embedding(1, 768))}
    )
    store.put(VOICES, "wide", write_record(wide), replaces=0, keeps=9)
    store.put(VOICES, "broken", b"{", replaces=0, keeps=9)
    library.add("anna", record("Anna"))
    assert [info.name for info in library.list()][-1] == "anna"
    assert library._voices is not None
    assert library._voices.broken == {"wide", "broken"}


def test_a_clone_keeps_its_codes_and_transcript(library: VoiceLibrary):
    codes = np.random.default_rng(1).integers(0, 625, (200, 4))
    clone = VoiceRecord.model_validate(
        {
            "title": "Clone",
            "origin": "upload",
            "created_at": NOW,
            "width": WIDTH,
            **sample_fields(codes, "a transcript"),
            "consent": Consent(statement="mine", given_at=NOW),
        }
    )
    voice = library.add("clone", clone).voice
    assert voice.embedding is None
    assert voice.sample_codes is not None
    assert np.array_equal(voice.sample_codes, codes)
    assert voice.sample_text == "a transcript"
    assert library.list()[-1].consent
    with pytest.raises(InvalidRequest, match="no embedding"):
        library.get("blend:clone(1)+alloy(1)")


def test_guests_are_known_to_their_host_alone(library: VoiceLibrary):
    trial = Voice("trial", embedding(1))
    with library.temporary(trial) as name:
        assert library.get(name) is trial
        with pytest.raises(UnknownVoice):
            library.canonical(name)
    with pytest.raises(UnknownVoice):
        library.get(name)


titles = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=100)


@given(title=titles, number=st.integers(0, 2**32 - 1), gain=st.floats(-24, 24), note=titles)
def test_records_come_back_as_they_were(title: str, number: int, gain: float, note: str):
    written = record(title, number, gain_db=gain, licence=note)
    read = read_record("anna", 3, write_record(written), width=WIDTH)
    assert read.record == written
    assert same(read.voice, embedding(number))
    assert read.voice.gain_db == gain


weights = st.floats(0.001, 999).map(lambda value: round(value, 3))
seeds = st.integers(0, 2**32 - 1)


@given(seeds, seeds, weights, weights)
def test_blends_are_linear(a: int, b: int, first: float, second: float):
    mixed = blend(((embedding(a), first), (embedding(b), second)))
    exact = (first * embedding(a).astype(np.float64) + second * embedding(b).astype(np.float64)) / (first + second)
    assert np.abs(mixed.astype(np.float64) - exact).max() <= np.abs(exact).max() * 2.0**-11 + 1e-7, "rounded once to float16"
    assert np.array_equal(blend(((embedding(a), first),)), embedding(a))
    scaled = blend(((embedding(a), 2 * first), (embedding(b), 2 * second)))
    assert np.array_equal(scaled, mixed), "only the proportion counts"


@given(parts=st.lists(st.tuples(seeds, weights), min_size=1, max_size=8, unique_by=lambda part: part[0]), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_blend_has_no_order_and_one_name(catalogue: VoiceCatalogue, parts: list[tuple[int, float]], data: st.DataObject):
    library = VoiceLibrary(catalogue)

    def named(order: list[tuple[int, float]]) -> str:
        return "blend:" + "+".join(f"seed:{seed}({weight:.3f})" for seed, weight in order)

    name = named(parts)
    other = named(data.draw(st.permutations(parts)))
    canonical = library.canonical(name)
    assert library.canonical(other) == canonical
    assert library.canonical(canonical) == canonical
    assert same(library.get(other), library.get(name).embedding)
    canonical.encode("latin-1")


@pytest.mark.parametrize(
    "name",
    [
        *("blend:", "blend:alloy", "blend:alloy(0)", "blend:alloy(-1)", "blend:alloy(1)+", "blend:alloy(nan)"),
        *("blend:alloy(1e3)", "blend:alloy(1)voice-5(1)", "blend:blend:alloy(1)(1)", "blend:alloy(1000)"),
        "blend:" + "+".join(["alloy(1)"] * 9),
    ],
)
def test_bad_blends_say_how_it_is_written(library: VoiceLibrary, name: str):
    with pytest.raises(InvalidRequest):
        library.get(name)


@given(st.text(max_size=80))
def test_names_are_taken_apart_without_surprise(text: str):
    if is_id(text):
        assert ID.fullmatch(text)
        assert split_version(f"{text}@3") == (text, 3)
        assert split_version(text) is None
    assert len(display_name("emb:" + text)) == len("emb:") + 16
    if text.startswith("emb:"):
        return
    assert display_name(text) == text
    with contextlib.suppress(InvalidRequest):
        assert all(weight > 0 for _, weight in split_blend(text))


def test_a_voice_whose_preview_has_no_room_is_not_there(library: VoiceLibrary, store: Store, monkeypatch: pytest.MonkeyPatch):
    put = store.put

    def full(namespace: str, key: str, value: bytes, *, replaces: int, keeps: int | None = None) -> int:
        if namespace == PREVIEWS:
            raise StoreFull("full")
        return put(namespace, key, value, replaces=replaces, keeps=keeps)

    monkeypatch.setattr(store, "put", full)
    with pytest.raises(StoreFull):
        library.add("anna", record("Anna"), b"preview")
    monkeypatch.undo()
    library.add("anna", record("Anna"), b"preview")
    assert library.preview(library.find("anna")) == b"preview"
