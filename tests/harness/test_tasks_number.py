"""The last number of an answer: a table of spellings, and properties over many numbers and spellings."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tasks.number import canonical, gold_number, last_number

READ = [
    # plain numbers
    ("18", "18"),
    ("0", "0"),
    ("007", "7"),
    ("18.", "18"),
    ("18.0", "18"),
    ("18.50", "18.5"),
    (".5", "0.5"),
    ("It is .75 of it", "0.75"),
    ("0.125", "0.125"),
    ("The answer is 18", "18"),
    ("The answer is 18.", "18"),
    ("The answer is: 18!", "18"),
    ("#### 18", "18"),
    ("answer=18", "18"),
    ("It was 18.Then he left", "18"),
    ("(18)", "18"),
    ("[18]", "18"),
    ("18)", "18"),
    ("#18", "18"),
    ("~18", "18"),
    ("≈ 18", "18"),
    ("x = 18", "18"),
    ("18?", "18"),
    ("'18'", "18"),
    ('{"answer": 18}', "18"),
    ("18,", "18"),
    ("18;", "18"),
    ("18…", "18"),
    ("...18", "18"),
    # separators
    ("1,234", "1234"),
    ("1,234.50", "1234.5"),
    ("1,234,567", "1234567"),
    ("$1,234,567.89.", "1234567.89"),
    ("1,234,", "1234"),
    ("12,34,567", "1234567"),
    ("1 234", "1234"),
    ("1 234 567.5", "1234567.5"),
    ("1\u00a0234", "1234"),
    ("1\u202f234", "1234"),
    ("1\u2009234\u2009567", "1234567"),
    ("1_234", "1234"),
    ("1'234", "1234"),
    ("1’234", "1234"),
    ("1.234,50", "1234.5"),
    ("1.234.567", "1234567"),
    ("1{,}234", "1234"),
    ("1\\,234", "1234"),
    ("1\\!,234", "1234"),
    ("1, 2, 3", "3"),
    ("1,2,3", "3"),
    ("12,5", "12.5"),
    ("12,50 €", "12.5"),
    ("0,125", "0.125"),
    ("1 234,50", "1234.5"),
    ("1.000.000,00", "1000000"),
    ("10, 20", "20"),
    ("1,\\!234", "1234"),
    ("1, 234", "234"),
    ("3 and 234", "234"),
    ("2 100-dollar notes", "100"),
    # signs
    ("-5", "-5"),
    ("−5", "-5"),
    ("–5", "-5"),
    ("-5", "-5"),
    ("+5", "5"),
    ("is -5.", "-5"),
    ("(-5)", "-5"),
    ("**-5**", "-5"),
    ("= -5", "-5"),
    ("=-5", "-5"),
    ("= - 5", "-5"),
    ("-1,234.5", "-1234.5"),
    ("-.5", "-0.5"),
    ("-0", "0"),
    ("negative 5", "-5"),
    ("The answer is minus 5", "-5"),
    ("10 minus 5", "5"),
    ("10-15", "15"),
    ("10–15", "15"),
    ("10 - 15", "15"),
    ("10 -15", "15"),
    ("x-5", "5"),
    ("(a)-5", "5"),
    ("50%-5", "5"),
    ("- 5 apples", "5"),
    ("Total:\n- 5 apples\n- 6 pears", "6"),
    ("It is—5", "5"),
    ("10am-5pm", "5"),
    # currency, percent, units
    ("$18", "18"),
    ("$ 12", "12"),
    ("$12.00", "12"),
    ("\\$18", "18"),
    ("$18$", "18"),
    ("-$5", "-5"),
    ("$-5", "-5"),
    ("- $5", "5"),
    ("= -$5.25", "-5.25"),
    ("€5", "5"),
    ("£1,200", "1200"),
    ("¥500", "500"),
    ("₹1,00,000", "100000"),
    ("5€", "5"),
    ("US$5", "5"),
    ("USD5", "5"),
    ("USD 5", "5"),
    ("Rs.500", "500"),
    ("Rs 500", "500"),
    ("18 USD", "18"),
    ("18 dollars", "18"),
    ("12 apples", "12"),
    ("5kg", "5"),
    ("5 km/h", "5"),
    ("60 miles/hour", "60"),
    ("25%", "25"),
    ("25 %", "25"),
    ("25\\%", "25"),
    ("25 percent", "25"),
    ("18°C", "18"),
    ("18¢", "18"),
    ("5 m^2", "5"),
    ("5 m²", "5"),
    ("5 cm^{3}", "5"),
    ("5\\text{ cm}^2", "5"),
    ("5 m<sup>2</sup>", "5"),
    ("18\\text{ dollars}", "18"),
    ("3-day trip", "3"),
    # fractions
    ("3/4", "0.75"),
    ("1/3", "1/3"),
    ("-1/3", "-1/3"),
    ("3 / 4", "0.75"),
    ("1 1/2", "1.5"),
    ("-1 1/2", "-1.5"),
    ("½", "0.5"),
    ("1½", "1.5"),
    ("2⅓ cups", "7/3"),
    ("3⁄4", "0.75"),
    ("10/5", "2"),
    ("\\frac{3}{4}", "0.75"),
    ("\\dfrac{1}{3}", "1/3"),
    ("\\tfrac{1}{3}", "1/3"),
    ("-\\frac{1}{2}", "-0.5"),
    ("\\frac{-1}{2}", "-0.5"),
    ("2\\frac{1}{2}", "2.5"),
    ("-2\\frac{1}{2}", "-2.5"),
    ("\\frac12", "0.5"),
    ("\\frac{1,200}{3}", "400"),
    ("$\\frac{10}{4}$ litres", "2.5"),
    ("12/4 = 3", "3"),
    ("5/0", None),
    ("7 or 5/0", "7"),
    # LaTeX, markdown, code
    ("\\boxed{42}", "42"),
    ("\\boxed{42}.", "42"),
    ("$\\boxed{1,234}$", "1234"),
    ("\\boxed{\\$42}", "42"),
    ("\\boxed{\\frac{3}{4}}", "0.75"),
    ("\\boxed{-5}", "-5"),
    ("\\boxed{\\text{42}}", "42"),
    ("\\boxed{42\\text{ apples}}", "42"),
    ("\\[ x = 42 \\]", "42"),
    ("\\(42\\)", "42"),
    ("**18**", "18"),
    ("**$18**", "18"),
    ("__18__", "18"),
    ("*18*", "18"),
    ("`18`", "18"),
    ("```\n18\n```", "18"),
    ("```python\nanswer = 18\n```", "18"),
    ("```python\nprint(6 * 3)  # 18\n```\n", "18"),
    ("<<9*2=18>>18", "18"),
    ("| total | 18 |", "18"),
    ("<answer>18</answer>", "18"),
    ("The answer is 18.\\n", "18"),
    ("\\n18", "18"),
    # powers and scales
    ("1.5e6", "1500000"),
    ("1.5E+06", "1500000"),
    ("2e-3", "0.002"),
    ("3 × 10^5", "300000"),
    ("3 x 10^5", "300000"),
    ("3*10^5", "300000"),
    ("3 \\times 10^{5}", "300000"),
    ("3 × 10⁵", "300000"),
    ("3 × 10^-2", "0.03"),
    ("3⋅10^5", "300000"),
    ("10^6", "1000000"),
    ("2^10", "1024"),
    ("$1.5 million", "1500000"),
    ("2 thousand", "2000"),
    ("3 billion people", "3000000000"),
    ("5k", "5000"),
    ("3 × 10", "10"),
    # digits of other scripts
    ("١٨", "18"),
    ("۱۸", "18"),
    ("१८", "18"),
    ("১৮", "18"),
    ("๑๘", "18"),
    ("18", "18"),
    ("𝟏𝟖", "18"),
    ("١٬٢٣٤٫٥", "1234.5"),
    ("1,234.5", "1234.5"),
    ("答案是18。", "18"),
    ("答えは18個です", "18"),
    ("답은 18개", "18"),
    # the later number
    ("The answer is 5. Wait, that is wrong. The answer is 7.", "7"),
    ("16 - 3 - 4 = 9\n9 * 2 = 18", "18"),
    ("The answer is 7.\nCheck: 3 + 4 = 7", "7"),
    ("First 5, no, 7", "7"),
    ("#### 5\n#### 7", "7"),
    # what is no number of the answer
    ("", None),
    ("   ", None),
    ("no digits here", None),
    ("eighteen", None),
    (".", None),
    ("$", None),
    ("-", None),
    ("\\boxed{}", None),
    ("H2O", None),
    ("CO2 is a gas", None),
    ("x_1", None),
    ("x_{12}", None),
    ("abc123", None),
    ("18 and x_2", "18"),
    ("5 cakes on the 3rd day", "5"),
    ("on the 3rd", "3"),
    ("1. He has 5 apples.\n2. He is happy.", "5"),
    ("1. x = 9\n2. y = 18\n3.", "18"),
    ("1) x = 9\n2) y = 18\n3) done", "18"),
    ("**1.** x = 9\n**2.** done", "9"),
    ("18.\nThat is it.", "18"),
    ("Step 1: 9\nStep 2: done", "9"),
    ("9" * 400, None),
    ("1\u200b8", "18"),
    ("\u200e-5", "-5"),
    ("7 365-day years", "365"),
    ("1e999999999", None),
    ("9^99999", None),
    # further wordings, spellings and traps
    ("The answer is $5.", "5"),
    ("She has 5 left, i.e. five.", "5"),
    ("Total = $1,000", "1000"),
    ("5/8 of the pie", "0.625"),
    ("3:30", "30"),
    ("is 5\n\n", "5"),
    ("60 mph", "60"),
    ("Answer: 1/2 hour", "0.5"),
    ("0.5 hours or 30 minutes", "30"),
    ("\\$1,200.00", "1200"),
    ("**Answer: $1,200**", "1200"),
    ("= 1200.00 dollars", "1200"),
    ("The answer is 1200$", "1200"),
    ("The answer is \\( 36 \\)", "36"),
    ("The answer is $36$.", "36"),
    ("$$36$$", "36"),
    ("\\[\\boxed{36}\\]", "36"),
    ("```\n36", "36"),
    ("Answer: 36</s>", "36"),
    ("Answer: 36<|im_end|>", "36"),
    ("36 (thirty-six)", "36"),
    ("thirty-six", None),
    ("The answer is 36 dollars and cents", "36"),
    ("It takes 1.5h", "1.5"),
    ("12.", "12"),
    ("12..", "12"),
    ("12...", "12"),
    ("12,000,000", "12000000"),
    ("(12)", "12"),
    ("-12%", "-12"),
    ("−12 °C", "-12"),
    ("x=-12", "-12"),
    ("x = −12", "-12"),
    ("-1/2", "-0.5"),
    ("- 12", "12"),
    ("Answer: -12", "-12"),
    ("Answer:-12", "-12"),
    ("minus 12", "-12"),
    ("The change is -$1,234.50", "-1234.5"),
    ("1.2e3", "1200"),
    ("1.2E3", "1200"),
    ("1.2×10^3", "1200"),
    ("1.2 × 10³ dollars", "1200"),
    ("\\frac{1}{2}", "0.5"),
    ("\\frac{ 1 }{ 2 }", "0.5"),
    ("\\frac{22}{7}", "22/7"),
    ("\\boxed{1\\frac{1}{2}}", "1.5"),
    ("$\\frac{1}{2}$ of 10 is 5", "5"),
    ("3 \\frac{1}{2}", "3.5"),
    ("0x10", "10"),
    ("٣٫٥", "3.5"),
    ("５０％", "50"),
    ("一二三", None),
    ("₹ 1,50,000", "150000"),
    ("100,000,00", "0"),
    ("2 + 2 = 4", "4"),
    ("4 = 2 + 2", "2"),
    ("The answer is 4\nQuestion: none", "4"),
    ("4th", "4"),
    ("1st 2nd 3rd total 6", "6"),
    ("answer: `-4`", "-4"),
    ("answer is **-4**", "-4"),
    ("answer4", None),
    ("#4", "4"),
    ("4.0000", "4"),
    ("4,0", "4"),
    ("USD 4.50 each", "4.5"),
    ("4.50 USD", "4.5"),
    ("A$5", "5"),
    ("C$5", "5"),
    ("$5.5k", "5500"),
    ("5K", "5000"),
    ("6 feet 2", "2"),
    ("2⁄3", "2/3"),
    ("1 ⅔", "5/3"),
    ("10%", "10"),
    ("$10 per 3 apples", "3"),
    ("5x = 25, x = 5", "5"),
    ("5x", "5"),
    ("x5", None),
    ("12a", "12"),
    ("3.14.", "3.14"),
    ("3.14,", "3.14"),
    ("1,234.", "1234"),
    ("1,234.5.", "1234.5"),
    ("1234", "1234"),
    ("12345.678", "12345.678"),
    ("1 2 3", "3"),
    ("1\n234", "234"),
    ("10 200", "10200"),
    ("+7", "7"),
    ("±7", "7"),
    ("7±1", "1"),
    ("$7–$9", "9"),
    ("7-9", "9"),
    ("7 to 9", "9"),
    ("(7, -9)", "-9"),
    ("[-9]", "-9"),
    ("7/-9", "-9"),
    ("-7-9", "9"),
    ("−7 − −9", "-9"),
    ("5 - -3", "-3"),
    ("answer = 20 # dollars", "20"),
    ("print(20)", "20"),
    ("return 20\n```\nDone", "20"),
    ("<<4*5=20>>20 eggs", "20"),
    ("20 eggs.\n#### 20", "20"),
    ("#### -20", "-20"),
    ("####20.", "20"),
    ("20\xa0000 €", "20000"),
    ("€20.000,50", "20000.5"),
    ("$20,000.50", "20000.5"),
    ("20'000", "20000"),
    ("20 000", "20000"),
]


@pytest.mark.parametrize(("text", "number"), READ, ids=[ascii(text)[:60] for text, _ in READ])
def test_last_number(text: str, number: str | None) -> None:
    found = last_number(text)
    assert (None if found is None else canonical(found)) == number


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("9 * 2 = 18\n#### 18", 18),
        ("#### 1,234", 1234),
        ("#### -5", -5),
        ("#### $1,234.50", Fraction(2469, 2)),
        ("####18", 18),
        ("#### 5\n#### 7", 7),
        ("18", None),
        ("####", None),
        ("18 ####", None),
        ("#### unknown", None),
    ],
)
def test_gold_number_follows_the_mark(answer: str, number: Fraction | int | None) -> None:
    assert gold_number(answer) == number


decimals = st.builds(Fraction, st.integers(-(10**9), 10**9), st.sampled_from([1, 2, 4, 5, 8, 10, 100]))
rationals = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**4)
frames = st.sampled_from(
    [
        "{}",
        "The answer is {}",
        "The answer is {}.",
        "It costs 3 and then ${}.",
        "**{}**",
        "\\boxed{{{}}}",
        "x = {} apples",
        "#### {}",
        "`{}`",
        "({})",
        "3 + 4 is not {}!",
        "{}%",
        "{} km",
        "答案是 {}。",
        "1/2, 7, {}",
    ]
)


@given(rationals)
def test_canonical_text_is_exact(number: Fraction) -> None:
    assert last_number(canonical(number)) == number
    assert Fraction(canonical(number)) == number


@given(decimals, frames)
def test_any_decimal_is_found_in_any_frame(number: Fraction, frame: str) -> None:
    assert last_number(frame.format(canonical(number))) == number


@given(st.integers(-(10**12), 10**12), frames, st.sampled_from([",", "_", "\u202f", "{,}", "\\,"]))
def test_any_separator_is_understood(number: int, frame: str, separator: str) -> None:
    assert last_number(frame.format(f"{number:,}".replace(",", separator))) == number


@given(st.integers(0, 10**9), st.sampled_from([0x0660, 0x06F0, 0x0966, 0x09E6, 0x0E50, 0xFF10, 0x1D7CE]))
def test_digits_of_every_script_mean_the_same(number: int, zero: int) -> None:
    assert last_number("".join(chr(zero + int(digit)) for digit in str(number))) == number


@given(rationals, rationals)
def test_a_later_number_replaces_an_earlier_one(first: Fraction, second: Fraction) -> None:
    assert last_number(f"The answer is {canonical(first)}. No, it is {canonical(second)}.") == second


@given(st.text(max_size=300))
def test_any_text_gives_a_number_or_none(text: str) -> None:
    found = last_number(text)
    assert found is None or isinstance(found, Fraction)


@given(st.text(alphabet="0123456789.,/^-+eE$%{}\\ x×k_", max_size=60))
def test_any_jumble_of_signs_gives_a_number_or_none(text: str) -> None:
    found = last_number(text)
    assert found is None or last_number(canonical(found)) in (found, None)


@pytest.mark.parametrize(
    "piece", ["1,2", "1 ", "1/", "1,234", "\\frac", "1", "\n1.", "a_", " ", "- ", "1 234", "1^", "1e"]
)
def test_long_answers_take_little_time(piece: str) -> None:
    begin = time.perf_counter()
    last_number(piece * (20_000 // len(piece)))
    assert time.perf_counter() - begin < 20  # below 1 s; the bound catches exponential backtracking
