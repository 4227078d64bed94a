"""A prompt is filled in one pass, and whatever is no placeholder stays as it is."""

import pytest

from harness.prompt import check, fill, placeholders
from harness.settings import HarnessError


def test_what_a_value_contains_is_never_expanded_again() -> None:
    assert fill("{goal}|{observation}", {"goal": "{observation} {{x}}", "observation": "{goal}"}) == (
        "{observation} {{x}}|{goal}"
    )


def test_double_braces_print_the_name_in_single_ones() -> None:
    assert fill("{{goal}} is {goal}", {"goal": "x"}) == "{goal} is x"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "x", "arguments": {"a": 1}}',
        "{}",
        "{ goal }",
        "{Goal}",
        "{1}",
        "f(x) { return }",
        "{a-b}",
        "{",
        "}}{{",
    ],
)
def test_json_and_code_stay_as_they_are(text: str) -> None:
    assert placeholders(text) == []
    check(text, "p.md", [])
    assert fill(text, {}) == text


def test_placeholders_come_in_order_with_repetitions() -> None:
    assert placeholders("{b}{a}{{c}}{b}") == ["b", "a", "b"]


def test_an_unknown_placeholder_is_an_error_that_shows_how_to_print_it() -> None:
    with pytest.raises(HarnessError, match=r"p\.md: unknown placeholder \{gaol\}\. Known: goal\. .*\{\{gaol\}\}"):
        check("{gaol}", "p.md", ["goal"])
