"""Trades: doses, series, cricket, chess, stars, engines, kelvin and inches are read as who knows the trade says them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import normalize
from pipeline.text.normalize.numbers import english, integer
from tests.support.effort import examples
from tests.unit.pipeline.text.test_heldout import canonical

few = settings(max_examples=examples(40))


@pytest.mark.parametrize(("written", "spoken"), [
    ("500 mg p.o. q8h for a week", "five hundred milligrams by mouth every eight hours for a week"),
    ("Take 2 tabs BID prn.", "Take two tabs twice a day as needed."),
    ("5 mg t.i.d. with food", "five milligrams three times a day with food"),
    ("5 mg b.i.d. Aspirin helps.", "five milligrams twice a day. Aspirin helps."),
    ("every q4-6h", "every every four to six hours"),
    ("He bid 5 dollars.", "He bid five dollars."), ("the Po and the stat line", "the Po and the stat line"),
    ("每次2片，q8h", "每次两片，每八小时一次"),
    ("头孢0.1g，bid", "头孢零点一克，每日两次"), ("Q8 is a car", "Q eight is a car"),
    ("Q4 hours, Q8H", "Q four hours, every eight hours"),
    ("watch s02e05-07", "watch season two episodes five to seven"), ("看了S03E09", "看了第三季第九集"),
    ("the S20 and E12", "the S twenty and E twelve"),
    ("England were 245/6 at stumps", "England were two hundred forty five for six at stumps"),
    ("Root is on 103* in this innings", "Root is on one hundred three not out in this innings"),
    ("took 5/34 in 12 overs", "took five for thirty four in twelve overs"),
    ("412/8d, with 3 wickets", "four hundred twelve for eight declared, with three wickets"),
    ("on 12/5 the cricket began", "on December fifth the cricket began"), ("it is 3/4 full", "it is three quarters full"),
    ("then 12. Nf3 Nc6 13. exd5", "then twelve, knight F three knight C six thirteen, E takes D five"),
    ("play 14...Qxd4+ 15. O-O-O", "play fourteen, queen takes D four check fifteen, castles queenside"),
    ("White plays Rad1 now", "White plays rook A D one now"),
    ("on B5 paper or Ba6 or e4", "on B five paper or Ba six or E four"),
    ("白方走Nf3，象棋很难", "白方走马F三，象棋很难"), ("Buy 2. Eat 3.", "Buy two. Eat three."),
    ("a 5* hotel, a 4* or 5* resort", "a five star hotel, a four star or five star resort"), ("rated 4*.", "rated four stars."),
    ("住5*酒店", "住五星级酒店"), ("it is 5*3", "it is five times three"), ("see note 5*", "see note five"),
    ("a V8 engine, v2 of it", "a V eight engine, version two of it"), ("V1.0", "version one point zero"),
    ("from 300 K to 4.2 K", "from three hundred kelvin to four point two kelvin"),
    ("a 2700K bulb", "a two thousand seven hundred kelvin bulb"),
    ("a 5 K run, a salary of 80 K", "a five K run, a salary of eighty thousand"),
    ("300 K users, $5 K", "three hundred thousand users, five thousand dollars"),
    ("温度约为77 K，4K屏", "温度约为七十七开尔文，四K屏"),
    ("1/2 in. wide, 3 1/4 in. long", "one half inch wide, three and a quarter inches long"),
    ("a 12 in. ruler", "a twelve inch ruler"),
    ("about 6 in. Then", "about six inches. Then"),
    ("10 in 5 days, 1/2 in 2020", "ten in five days, one half in twenty twenty"),
    ("It came in. 3 left.", "It came in. three left."),
    ("it is n(n+1)/2 or (x+1)/(x-1)", "it is n, n plus one, over two or, x plus one, over, x minus one"),
    ("f(x) = 1/x", "f of x equals one over x"),
    ("and/or, 24/7, w/o, 3/4", "and or, twenty four seven, without, three quarters"),
    ("n/a, a/c, (b)/c", "not applicable, a c, b, over c"),
    ("E = mc², 5 cm²", "E equals m c squared, five square centimeters"),
    ("e^(-x), aₙ, ∛8", "e to the power of minus x, a sub n, the cube root of eight"),
    ("3x - 5 > 7, x → ∞", "three X minus five is greater than seven, x to infinity"),
    ("2x - 3x faster", "two X to three times faster"),
    ("Dial *67 or *69 now", "Dial star sixty seven or star sixty nine now"), ("the *67 note", "the times sixty seven note"),
    ("BEN: Yes.\nSUE: No.\nSUE\nYes.", "Ben, Yes. Sue, No. Sue. Yes."), ("FAQ: see BEN", "F A Q, see B E N"),
    ("CEO: yes", "C E O, yes"),
    ("10:15 The keynote of Ann\n11:00 Break", "ten fifteen The keynote of Ann. eleven o clock Break"),
    ("```python\nx = f(\"a\")  # one\n```\nSo.", "x f a one. So."),
    ("```\nx = 1 at 3:30\n```", "x equals one at three thirty."),
    ("```text\nIt costs $5.\n```", "It costs five dollars."),
    ("cut it to < 2%, CRP < 5", "cut it to less than two percent, C R P is less than five"),
    ("3\" cookies, 12\" wide", "three inch cookies, twelve inches wide"), ("they are 10-6-1", "they are ten, six, one"),
    ("N-P-K of 20-10-10", "N P K of twenty, ten, ten"), ("sort code 12-34-56", "sort code one two, three four, five six"),
    ("it was on 2024-01-02 or 01-02-03", "it was on January second, twenty twenty four or zero one, zero two, zero three"),
    ("HEAD~3, ~5 km", "HEAD, three, about five kilometers"), ("sizes XS-XXL and S–L", "sizes X S to X X L and S to L"),
    ("$45.00 USD, $5 CAD", "forty five U S dollars, five Canadian dollars"), ("a 54 y/o man", "a fifty four year old man"),
    ("a GPA of 3.85/4.0, rain 7/10.", "a G P A of three point eight five out of four point zero, rain seven out of ten."),
    ("7/10 of it, x = 3/10.", "seven tenths of it, x equals three tenths."), ("3/10 mile", "three tenths mile"),
    ("2 T. oil and 1 t. salt", "two tablespoons oil and one teaspoon salt"), ("5 t. of coal", "five tons. of coal"),
    ("MR. HALE: Yes.", "Mister HALE, Yes."), ("the mtg, $5 inc. tax", "the meeting, five dollars including tax"),
    ("Moby-Dick (1851), Reviews (1540)", "Moby Dick, eighteen fifty one, Reviews, one thousand five hundred forty"),
    ("见P35-40页和p12页", "见第三十五到四十页和第十二页"),
    ("订单号：20240315-8812，订单7781-2045已发", "订单号，二零二四零三一五，八八一二，订单七七八一，二零四五已发"),
    ("订单1000-2000个，客户3-5人", "订单一千到两千个，客户三到五人"),
    ("国足vs日本", "国足对日本"), ("iOS 17+才支持，10+人", "i O S十七以上才支持，十多人"),
    ("What is 7 × 8?", "What is seven times eight."), ("a room of 7 × 8", "a room of seven by eight"),
    ("> [!NOTE]\n> Keep it.", "NOTE. Keep it."), ("password: hunter2", "password, hunter two"),
    ("passcode: 7Gk2pQ.", "passcode, seven G K two P Q."), ("密码是aB3dE9", "密码是A B三D E九"),
    ("the word Gk2pQs", "the word Gk two pQs"), ("Leeds vs Fulham", "Leeds versus Fulham"),
    ("若a:b=2:3，则(a+b)/b=5/3", "若a，b等于二比三，则，a加b，除以b等于三分之五"),
])  # fmt: skip
def test_the_notation_of_a_trade(written: str, spoken: str):
    assert normalize(written).text == spoken


@few
@given(st.integers(1, 40), st.integers(1, 199))
def test_an_episode_has_its_season(season: int, episode: int):
    for written in (f"S{season:02}E{episode:02}", f"s{season}e{episode}"):
        assert canonical(normalize(f"we saw {written} today").text) == canonical(
            f"we saw season {english(season)} episode {english(episode)} today"
        )
        assert (
            normalize(f"他看了{written}。").text == f"他看了第{integer(str(season), 'zh')}季第{integer(str(episode), 'zh')}集。"
        )


@few
@given(st.integers(32, 900), st.integers(0, 10))
def test_runs_are_for_wickets_where_cricket_is_played(runs: int, wickets: int):
    said = normalize(f"At {runs}/{wickets} the batters declared.").text
    assert canonical(said) == canonical(f"At {english(runs)} for {english(wickets)} the batters declared")
