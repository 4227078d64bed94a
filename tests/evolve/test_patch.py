"""Edits over files: exact or refused."""

import json

import pytest

from evolve.patch import (
    AddFile,
    DeleteFile,
    Patch,
    PatchError,
    ReplaceFile,
    ReplaceText,
    apply,
    diff,
    text_hash,
)

FILES = {"harness.toml": "model = 'm'\n", "prompts/system.md": "Be brief.\nThink.\nBe kind.\n"}


def one(edit: AddFile | DeleteFile | ReplaceFile | ReplaceText) -> Patch:
    return Patch(edits=(edit,), hypothesis="it helps", evidence=("traj-1",))


def test_each_kind_of_edit_does_what_it_says_and_leaves_the_input_alone() -> None:
    before = dict(FILES)
    patch = Patch(
        edits=(
            ReplaceText(path="prompts/system.md", old="Think.\n", new="Think twice.\n"),
            AddFile(path="prompts/hint.md", new="Look first."),
            ReplaceText(path="prompts/hint.md", old="first", new="twice"),
            ReplaceFile(path="harness.toml", new="model = 'n'\n", before=text_hash(FILES["harness.toml"])),
        )
    )
    after = apply(before, patch)
    assert before == FILES
    assert after == {
        "harness.toml": "model = 'n'\n",
        "prompts/system.md": "Be brief.\nThink twice.\nBe kind.\n",
        "prompts/hint.md": "Look twice.",
    }
    assert apply(after, one(DeleteFile(path="prompts/hint.md"))).keys() == FILES.keys()


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (ReplaceText(path="prompts/system.md", old="Shout.", new="x"), "missing"),
        (ReplaceText(path="prompts/system.md", old="Be  brief. Think.", new="x"), "white space"),
        (ReplaceText(path="prompts/system.md", old="Be ", new="x"), "more than once"),
        (ReplaceText(path="prompts/system.md", old="", new="x"), "empty"),
        (ReplaceText(path="prompts/system.md", old="Think.", new="Think."), "equals"),
        (ReplaceFile(path="harness.toml", new="model = 'm'\n"), "equals"),
        (ReplaceFile(path="harness.toml", new="x", before="0" * 64), "not the one"),
        (ReplaceFile(path="nowhere.md", new="x"), "no such file"),
        (DeleteFile(path="nowhere.md"), "no such file"),
        (AddFile(path="harness.toml", new="x"), "exists"),
        (AddFile(path="Harness.toml", new="x"), "case"),
        (AddFile(path="prompts", new="x"), "in its way"),
        (AddFile(path="harness.toml/x", new="x"), "in its way"),
    ],
)
def test_an_edit_that_does_not_fit_names_the_file_and_the_reason(edit: ReplaceText, reason: str) -> None:
    with pytest.raises(PatchError, match=reason) as caught:
        apply(FILES, one(edit))
    assert caught.value.path == edit.path


def test_a_snippet_that_overlaps_itself_is_ambiguous() -> None:
    with pytest.raises(PatchError, match="more than once"):
        apply({"a": "xxx"}, one(ReplaceText(path="a", old="xx", new="y")))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../out",
        "a/../b",
        "a//b",
        "./a",
        "a/",
        "a\\b",
        "C:/x",
        ".env",
        "a/.git/x",
        "a\x00b",
        "a\nb",
        "x" * 101,
        "d/" * 101 + "x",
    ],
)
def test_no_path_leaves_the_folder_or_hides_in_it(path: str) -> None:
    with pytest.raises(PatchError):
        apply(FILES, one(AddFile(path=path, new="x")))


def test_growth_beyond_the_cap_is_refused_and_shrinking_elsewhere_pays_for_it() -> None:
    grow = AddFile(path="a.md", new="x" * 20)
    with pytest.raises(PatchError, match="adds 20 characters, at most 19"):
        apply(FILES, one(grow), max_growth=19)
    patch = Patch(edits=(grow, ReplaceText(path="prompts/system.md", old="Be kind.\n", new="")))
    assert "a.md" in apply(FILES, patch, max_growth=11)


def test_a_round_trip_through_json_keeps_everything() -> None:
    patch = Patch(
        edits=(AddFile(path="ä.md", new="\U0001f41b\ud83d\r\n"), DeleteFile(path="b", before="0" * 64)),
        hypothesis="why",
        evidence=("t1", "t2"),
    )
    assert Patch.model_validate(json.loads(json.dumps(patch.model_dump(mode="json")))) == patch


def test_the_digest_knows_the_edits_and_not_the_reasons() -> None:
    edit = AddFile(path="a", new="x")
    assert Patch(edits=(edit,), hypothesis="a").digest() == Patch(edits=(edit,), hypothesis="b").digest()
    assert Patch(edits=(edit,)).digest() != Patch(edits=(AddFile(path="a", new="y"),)).digest()


def test_the_diff_is_unified_and_marks_a_missing_last_newline() -> None:
    got = diff(FILES, {**FILES, "harness.toml": "model = 'n'", "new.md": "hello\n"})
    assert "--- a/harness.toml\n+++ b/harness.toml\n" in got
    assert "-model = 'm'\n+model = 'n'\n\\ No newline at end of file\n" in got
    assert "--- /dev/null\n+++ b/new.md\n" in got
    assert "system.md" not in got
    assert diff(FILES, FILES) == ""
