"""MathVista answers: a table of wordings for every type of question, and how predictions are compared."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tasks.mathvista_answer import equal, extract

LENGTHS = ["35°", "45°", "20cm", "20√{2}cm"]
RATIOS = ["\\frac{4}{3}", "0.75", "16*\\pi/5", "32*\\pi/5"]
WORDS = ["quarter", "quarter past", "half", "decrease"]
SHUFFLED = ["(c)", "(d)", "(a)", "(b)"]

CHOICES = [
    # letters
    ("B", LENGTHS, "45°"),
    ("b", LENGTHS, "45°"),
    ("(B)", LENGTHS, "45°"),
    ("(b) 45°", LENGTHS, "45°"),
    ("**B.** 45°", LENGTHS, "45°"),
    ("The answer is (B).", LENGTHS, "45°"),
    ("\\boxed{B}", LENGTHS, "45°"),
    ("答案是B", LENGTHS, "45°"),
    ("<think>maybe A</think>B", LENGTHS, "45°"),
    ("The answer is A. Wait, the answer is B.", LENGTHS, "45°"),
    ("(A) 35°\n(B) 45°\n(C) 20cm\n(D) 20√{2}cm\nAnswer: B", LENGTHS, "45°"),
    ("B B B B", LENGTHS, "45°"),
    # texts
    ("45", LENGTHS, "45°"),
    ("45 degrees", LENGTHS, "45°"),
    ("$45^\\circ$", LENGTHS, "45°"),
    ("\\boxed{45^{\\circ}}", LENGTHS, "45°"),
    ("So the angle measures 45 degrees.", LENGTHS, "45°"),
    ("Hence A = 45°.", LENGTHS, "45°"),
    ("At first sight 35°. But in fact the angle is 45°.", LENGTHS, "45°"),
    ("20 cm", LENGTHS, "20cm"),
    ("The length is 20\\sqrt{2} cm.", LENGTHS, "20√{2}cm"),
    ("20√2cm", LENGTHS, "20√{2}cm"),
    ("4/3", RATIOS, "\\frac{4}{3}"),
    ("\\frac43", RATIOS, "\\frac{4}{3}"),
    ("The answer is $\\dfrac{4}{3}$.", RATIOS, "\\frac{4}{3}"),
    ("The answer is 3/4.", RATIOS, "0.75"),
    ("\\frac{16\\pi}{5}", RATIOS, "16*\\pi/5"),
    ("The volume is 32π/5.", RATIOS, "32*\\pi/5"),
    ("It is quarter past.", WORDS, "quarter past"),
    ("The answer is quarter.", WORDS, "quarter"),
    ("The population would Decrease.", WORDS, "decrease"),
    ("Yes, because it is longer.", ["yes", "no"], "yes"),
    ("No, there is no difference.", ["Yes", "No"], "No"),
    ("The answer is not no but yes.", ["yes", "no"], "yes"),
    ("18", ["9", "12", "18", "18"], "18"),
    ("36", ["6", "36"], "36"),
    ("It's 5.", ["1.5", "5"], "5"),
    # options that look like the letters of others
    ("(b)", SHUFFLED, "(b)"),
    ("The answer is (b).", SHUFFLED, "(b)"),
    ("(D) (b)", SHUFFLED, "(b)"),
    ("(D)", SHUFFLED, "(b)"),
    ("The answer is D", ["A", "B", "C", "D"], "D"),
    # nothing chosen
    ("", LENGTHS, None),
    ("  \n", LENGTHS, None),
    ("The answer is", LENGTHS, None),
    ("I cannot see the picture.", LENGTHS, None),
    ("The answer is 50°.", LENGTHS, None),
    ("The answer is 35° or 45°.", LENGTHS, None),
    ("e", LENGTHS, None),
    ("Blue", ["red", "green"], None),
    ("mice eat grass", ["mice", "grass"], None),
]

FREE = [
    ("integer", None, "5", "5"),
    ("integer", None, "The answer is 5 because 2 + 3 = 5 and 9 is odd.", "5"),
    ("integer", None, "12 - 5 = 7", "7"),
    ("integer", None, "The answer is 1,020.", "1020"),
    ("integer", None, "The answer is 5. Wait, I miscounted; the answer is 6.", "6"),
    ("integer", None, "\\boxed{5}, no, \\boxed{6}", "6"),
    ("integer", None, "### Answer\n53", "53"),
    ("integer", None, "Answer: −104", "-104"),
    ("integer", None, "There are three cubes.", "3"),
    ("integer", None, "The answer is one.", "1"),
    ("integer", None, "this one", None),
    ("integer", None, "٣", "3"),
    ("integer", None, "I count 4. The answer is", "4"),
    ("integer", None, "The answer is", None),
    ("integer", None, "", None),
    ("integer", None, "none", None),
    ("integer", "years", "In 1970 he was 7 years older.", "7"),
    ("integer", "years", "He is 7 years older than in 1970", "7"),
    ("float", "$", "2 loaves cost $19.50", "19.5"),
    ("float", None, "The answer is x = 3 + 4.2 = 7.2 cm.", "7.2"),
    ("float", None, "The answer is 0.21 N/C at r = 2.00 R_2.", "0.21"),
    ("float", None, "$-4.3$ eV", "-4.3"),
    ("float", None, "1.2e-2", "0.012"),
    ("float", None, "The answer is \\frac{1}{3}", "1/3"),
    ("list", None, "[0, 2, 1]", "[0, 2, 1]"),
    ("list", None, "The answer is 0, 2 and 1.", "[0, 2, 1]"),
    ("list", None, "The answer is 0, 2, and 1.", "[0, 2, 1]"),
    ("list", None, "The list [9, 9] becomes \\{0, 2, 1\\}.", "[0, 2, 1]"),
    ("list", None, "```python\n[0, 2, 1]\n```", "[0, 2, 1]"),
    ("list", None, "none", None),
    ("text", None, "The answer is **Paris**.", "Paris"),
    ("text", None, "\\boxed{\\text{Paris}}", "Paris"),
    ("text", None, "I think so.\nParis.", "Paris"),
    ("text", None, "", None),
]


@pytest.mark.parametrize(("raw", "choices", "chosen"), CHOICES, ids=[ascii(case[0])[:50] for case in CHOICES])
def test_an_option_is_read_by_its_letter_or_its_text(raw: str, choices: list[str], chosen: str | None) -> None:
    assert extract(raw, "multi_choice", "text", choices, None, None) == chosen


@pytest.mark.parametrize(("kind", "unit", "raw", "prediction"), FREE, ids=[ascii(case[2])[:50] for case in FREE])
def test_a_free_answer_is_read(kind: str, unit: str | None, raw: str, prediction: str | None) -> None:
    assert extract(raw, "free_form", kind, None, 1.0, unit) == prediction


@pytest.mark.parametrize(
    ("prediction", "answer", "kind", "precision", "same"),
    [
        ("7.0", "7", "integer", None, True),
        ("7.5", "7", "integer", None, False),
        ("seven", "7", "integer", None, False),
        ("1.24", "1.2", "float", 1, True),
        ("1.25", "1.2", "float", 1.0, True),
        ("1.26", "1.2", "float", 1, False),
        ("1/3", "0.33", "float", 2, True),
        ("0.3", "0.33", "float", 2, False),
        ("1.24", "1.2", "float", None, True),
        ("1.26", "1.2", "float", None, False),
        ("-1.2", "1.2", "float", 1, False),
        ("", "1.2", "float", 1, False),
        ("[0, 2.0, 1]", "[0, 2, 1]", "list", None, True),
        ("[0, 2]", "[0, 2, 1]", "list", None, False),
        ("[2, 0, 1]", "[0, 2, 1]", "list", None, False),
        ("paris ", "Paris", "text", None, True),
        ("Parisian", "Paris", "text", None, False),
        ("", "", "text", None, False),
    ],
)
def test_comparison(prediction: str, answer: str, kind: str, precision: float | None, same: bool) -> None:
    assert equal(prediction, answer, kind, None, precision, None) is same


def test_an_option_may_be_predicted_by_its_letter() -> None:
    assert equal("B", "oak", "text", ["wax", "oak"], None, None)
    assert not equal("A", "oak", "text", ["wax", "oak"], None, None)
    assert not equal("C", "oak", "text", ["wax", "oak"], None, None)
    assert equal("A", "A", "text", ["B", "A"], None, None)


@given(st.text(max_size=200), st.sampled_from(["integer", "float", "list", "text"]))
def test_any_text_is_read_or_invalid(raw: str, kind: str) -> None:
    free = extract(raw, "free_form", kind, None, 1, "cm")
    chosen = extract(raw, "multi_choice", "text", LENGTHS, None, None)
    assert free is None or free
    assert chosen is None or chosen in LENGTHS


@pytest.mark.parametrize("piece", ["the answer is ", "\\boxed{", "\\frac{1}{2}", "45° ", "[1,", "√{2}", "a = ", "\n"])
def test_long_answers_take_little_time(piece: str) -> None:
    raw, begin = piece * (8_000 // len(piece)), time.process_time()
    extract(raw, "multi_choice", "text", LENGTHS, None, None)
    extract(raw, "free_form", "list", None, None, None)
    extract(raw, "free_form", "float", None, 1, "cm")
    assert time.process_time() - begin < 20  # about a second; the bound catches exponential backtracking
