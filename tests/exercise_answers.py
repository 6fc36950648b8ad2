"""What each test__checks_NN.py asks of its exercises: right answers pass, wrong ones hear why, a stub is told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from helpers.exercises import check


def answers_tested(right: dict[str, list[Callable]], wrong: Sequence[tuple[str, Callable, list[str]]]) -> type:
    """Returns the test class; a module makes it its own as ``TestAnswers = answers_tested(RIGHT, WRONG)``.

    Args:
        right: the name of each exercise -> answers that pass.
        wrong: an exercise, an answer that does not pass, and what has to be in the words for it.
    """

    class TestAnswers:
        @pytest.mark.parametrize("name", right)
        def test_right_answers_pass(self, name: str) -> None:
            for number, answer in enumerate(right[name]):
                result = check(answer, name)
                assert result.passed, f"answer {number}: {result}"

        @pytest.mark.parametrize(("name", "answer", "sentences"), wrong)
        def test_wrong_answers_hear_their_own_sentence(self, name: str, answer: Callable, sentences: list[str]) -> None:
            result = check(answer, name)
            assert not result.passed
            for sentence in sentences:
                assert sentence in repr(result), result

        @pytest.mark.parametrize("name", right)
        def test_the_stub_is_told_from_a_wrong_answer(self, name: str) -> None:
            def stub(*args: Any) -> None:
                raise NotImplementedError

            assert "not written yet" in repr(check(stub, name))

    return TestAnswers
