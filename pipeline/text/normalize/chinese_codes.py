"""Chinese codes: reads numbers in Chinese text that name something: service numbers, orders, generations, slang, roads, scores.

In:    matches of digits
Out:   Chinese characters, most digit by digit
Owns:  the words that reveal a code or a score beside a number
Never: quantities, dates, English codes
"""

import re

from pipeline.text.normalize.latin import join_words, letters
from pipeline.text.normalize.numbers import counted, integer, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.rule import Match, Outcome, Rule, after, alternatives, before, numeric, rule
from pipeline.text.normalize.tables import row_table, word_list
from pipeline.text.normalize.words import MEASURES, STROKES

_MEASURE = re.compile(
    rf" ?(?:{alternatives([word for word in MEASURES if word not in '万千亿点面口份方'])}|{STROKES}|[%℃°多余来几])"
)
_SERVICE_NUMBERS = frozenset(row_table("service number"))
CALLED_BEFORE = re.compile(
    r"(?:打|拨|拨通|拨号|呼叫|致电|来电|火警|匪警|急救|报警|救护|叫|热线|电话|短信|发送到|打了?|求助)[了个是为到:]?\s?$"
)
_CALLED_AFTER = re.compile(
    r"\s?(?:报警|接警|急救|火警|火灾|匪警|查号台?|指挥|热线|电话|出警|救护|民警|警察|警情|平台|中心|巡警|值班|消防|交警|交通事故|投诉|客服|救援|来电|求救|专线|"
    r"官网|APP|App|短信|营业厅)"
)
CODE_BEFORE = re.compile(
    r"(?:(?<![期几\d])号|(?<![尺起数筹号])码|订单|会议|客户|会员|工单|直播间|设备|商户|账户|运单|快递单?|身份证|股票|证券|基金|端口|群|"
    r"车牌|邮编|批次|[车班]次|保单|发票|合同|档案|产品|商品|频道|频率|包间|包厢|错误|状态|返回|报错|单元|门牌|宿舍|"
    r"教室|病房|准考证|考场|座位|楼|栋|座|幢|房间|口令|电话|手机|热线|拨打?|呼叫|波音|分机|(?<![\u4e00-\u9fff])转|[请机话号线]转|微信|航班|型号|QQ|内线|短号|床位|柜台?|工位|"
    r"\b(?i:ID|PIN|code|zip|password|room|flight|extension|ext\.?|dial|call|agent))(?:号码|号|ID|id|[为是了:#(（,，]|\s){0,3}$"
)
_DIALLED_BEFORE = re.compile(r"(?:电话|转|分机|手机|热线|拨|呼叫|航班|房间)[^\d]{0,5}$")
_CODE_AFTER = re.compile(
    r"\s?(?:教室|包间|包厢|宿舍|会议室|寝室|房|病房|病室|办公室|实验室|机房|室|路公交|路车|路(?!人|程|费|灯)|次(?:列车|航班|动车|高铁|特快)|"
    r"国道|省道|县道|高速|错误|报错|状态码|端口|航班|频道|处理器|芯片|显卡|手机|医院|厂|所(?!有)|厅|病区)"
)
_MODEL_BEFORE = re.compile(rf"(?:{alternatives(word_list('model before'))})-?\s?$")
_UNIVERSITY = (
    "高校|大学|院校|名校|工程|毕业|硕士|本科|学校|博士|研究生|双一流|的?学生|平台|项目|学历|出身|、211|/211|和211|与211"
)
_SHOPPING = "大促|活动|购物|年中|期间|狂欢|促销|电商|当天|预售|优惠|来了|快到|销售|大战|战报|专场|价格|开门红|剁手|囤货|红包"
_SLANG = (
    rf"666+(?!\d)|996(?!\d)|(?:007)(?!\d)|233+(?!\d)|985(?=\s?(?:{_UNIVERSITY}))|211(?=\s?(?:{_UNIVERSITY}))|618(?=\s?(?:{_SHOPPING}))|"
    r"315(?=\s?(?:晚会|消费者|打假|曝光|维权))|520(?=\s?(?:快乐|表白|情人|礼物|告白|红包|当天|节|领证|我爱你))|1314|5201314|886(?!\d)|"
    r"1024(?=\s?(?:程序员|节))|955(?=\s?工作)|716(?=\s?工作)|502(?=\s?胶)|404(?=\s?(?:页面|错误|了|not|Not))|110(?=\s?(?:宣传日))|007(?=\s?工作)"
)
_SCORE_BEFORE = re.compile(
    r"(?:比分|大胜|完胜|战胜|击败|险胜|逆转|惨败|不敌|负于|输给?|领先|落后|半场|上半场|下半场|总分|首局|主队|客队|[队国]|以|战平|战成|"
    r"扳成|打成|改写为|追成|局分|盘分|大分|第[一二三四五]局|首节|末节|点球|加时)[为是:]?\s?$"
)
_SCORE_AFTER = re.compile(rf"\s?(?:{alternatives(word_list('score after'))}|[\u4e00-\u9fff]{{2,4}}队)")
_SEAT_BEFORE = re.compile(r"[图表第号座栋楼幢单元题页章节式条款附编室款型]\s?$")
_GENERATION_NOT = r"(?!天|来|的\d|面|边|方|续|退|卫|背|台|果)"
_YEAR_SPAN_AFTER = re.compile(
    r"\s?年(?:来|间|历史|的历史|以上|左右|之久|前|后|多|内|寿|期|以内|之内|的时间|以来|里|过去|如一日)"
)
_YEAR_SPAN_BEFORE = re.compile(
    r"(?:近|约|超过|过去|长达|大约|将近|至少|历时|历经|整整|有着?|了|成立|走过|共|满|活|需要?|花|用|坚持|等|工作|结婚)$"
)


def _spelled(match: Match, language: Language) -> Outcome:
    return spell(match[0], "zh", telephone=False) if language == "zh" else None


def _service(match: Match, language: Language) -> Outcome:
    """10086, 12345 and bank lines anywhere, 110 only beside a word of calling."""
    if language != "zh" or _MEASURE.match(match.string, match.end()):
        return None
    listed = re.search(r"(?<!\d)1[12]\d[、和或]$", before(match, 5)) or re.match(
        r"[、和或]1[12]\d(?![\d个人元米分次])", after(match, 5)
    )
    is_called = listed or CALLED_BEFORE.search(before(match, 6)) or _CALLED_AFTER.match(match.string, match.end())
    known = match[0] in _SERVICE_NUMBERS and not match[0].endswith("000")
    bank = match[0].startswith(("955", "123")) and len(match[0]) == 5
    return spell(match[0], "zh", telephone=True) if is_called or known or bank else None


def _code(match: Match, language: Language) -> Outcome:
    groups = re.split("[ -]", match[0])
    if "-" in match[0] and len(groups[0]) <= len(groups[1]) and groups[0] <= groups[1]:
        return None  # a range
    if CODE_BEFORE.search(before(match, 10)) and not _MEASURE.match(match.string, match.end()):
        is_dialled = bool(_DIALLED_BEFORE.search(before(match, 10)))
        return "，".join(spell(group, "zh", telephone=is_dialled) for group in groups)
    if len(groups) > 1:
        return None
    after_it = _CODE_AFTER.match(match.string, match.end())
    is_round = match[0].endswith("00") and match.string.startswith("路", match.end())
    return spell(match[0], "zh") if after_it and not is_round else None


def _long(match: Match, language: Language) -> Outcome:
    """A long number without commas that is not round is the name of something."""
    if (
        language != "zh"
        or match[0].endswith("000")
        or _MEASURE.match(match.string, match.end())
        or re.match(r"\s?[万亿元]", match.string[match.end() : match.end() + 2])
    ):
        return None
    return spell(match[0], "zh")


def _model(match: Match, language: Language) -> Outcome:
    return _hyphenated_model(match, language) if language == "zh" and _MODEL_BEFORE.search(before(match, 6)) else None


def _hyphenated_model(match: Match, language: Language) -> Outcome:
    digits = match["digits"]
    return integer(digits, "zh") if len(digits) < 3 else spell(digits, "zh")


def _short_year(match: Match, language: Language) -> Outcome:
    """08年, 98年: a year of two digits, unless it is a span of time."""
    digits = match["digits"]
    if before(match, 3).rstrip().endswith("公元"):
        return None
    is_old = digits[0] == "0" or (int(digits) >= 76 and digits[1] != "0")
    if not is_old or _YEAR_SPAN_AFTER.match(match.string, match.end()) or _YEAR_SPAN_BEFORE.search(before(match, 3)):
        return None
    return spell(digits, "zh")


def _is_set(match: Match) -> bool:
    """True for the second of 25-18、22-25: one of several scores, of which one falls."""
    context = re.split(r"[。.!?\n]", match.string[max(0, match.start() - 24) : match.end()])[-1]
    around = context + re.split(r"[。.!?\n]", match.string[match.end() : match.end() + 24])[0]
    if not re.search(r"\d[-–]\d{1,3}[、，,] ?$", before(match, 6)):
        return False
    return any(int(first) > int(second) for first, second in re.findall(r"(?<!\d)(\d{1,3})[-–](\d{1,3})(?!\d)", around))


def _score(match: Match, language: Language) -> Outcome:
    """112-108: falling, or beside a word of sport; 3-5 is a range."""
    low, high = match["low"], match["high"]
    if language != "zh":
        return None
    context = before(match, 6)
    falls = int(low) > int(high) and not re.search(r"[A-Za-z\d]$", context) and not _SEAT_BEFORE.search(context)
    falls = (
        falls
        and not re.match(r"\s?(?:[室号栋层楼单元房题页]|[=])", match.string[match.end() : match.end() + 3])
        and len(high) < 4
    )
    is_score = _is_set(match) or _SCORE_BEFORE.search(context) or _SCORE_AFTER.match(match.string, match.end())
    if (not is_score and not falls) or (low[0] == "0" and len(low) > 1) or (falls and not is_score and int(low) >= 200):
        return None
    return f"{integer(low, 'zh')}比{integer(high, 'zh')}"


def _height(match: Match, language: Language) -> Outcome:
    """1米82, 9秒58: hundredths without their unit."""
    digits = match["digits"]
    return f"{counted(digits)}{match['unit']}{spell(match['rest'], 'zh')}" if language == "zh" else None


def _feast(match: Match, language: Language) -> Outcome:
    """5.1劳动节, 11.11大促: a feast named by its date."""
    month, day = match["month"], match["day"]
    if month == day and int(month) > 10:
        return f"双{integer(month, 'zh')}"
    return integer(month, "zh") + spell(day, "zh") if month != "10" else "十一"


def _title(match: Match, language: Language) -> Outcome:
    """《1984》: a name in quotation marks."""
    return spell(match["digits"], "zh") if language == "zh" else None


def _class(match: Match, language: Language) -> Outcome:
    """初二(3)班."""
    return integer(match["digits"], "zh")


def _standard(match: Match, language: Language) -> Outcome:
    """GB/T 19001-2016."""
    return "杠".join(spell(part, "zh") for part in match[0].split("-")) if language == "zh" else None


def _plate(match: Match, language: Language) -> Outcome:
    """沪C·88888."""
    parts = re.findall(r"[A-Z]+|\d+", match[0])
    return join_words([spell(part, "zh") if part.isdigit() else letters(part) for part in parts])


def _house(match: Match, language: Language) -> Outcome:
    return spell(match["digits"], "zh")


_FREE = r"(?<![\dA-Za-z])(?<![\dA-Za-z][.,/-])(?<!\d:)"
_END = r"(?!\d|[,.:]\d|[A-Za-z])"
RULES: list[Rule] = [
    rule("a", r"(?<![A-Za-z])[Pp]\.?(?=\d{1,4}(?:[-–~]\d{1,4})?\s?页)", (None, "第")),
    rule("0", rf"{_FREE}(?P<digits>[12])\s?(?P<unit>米)\s?(?P<rest>\d\d)(?!\d|\.\d|\s?[米厘长宽高的])", _height, "units"),
    rule("0", rf"{_FREE}(?P<digits>\d{{1,2}})(?P<unit>秒)(?P<rest>\d\d)(?!\d|\.\d)", _height, "units"),
    rule(
        "0",
        rf"{_FREE}(?P<month>[35678]|10)\.(?P<day>1|4|8)(?<=3\.8|5\.1|5\.4|6\.1|7\.1|8\.1|0\.1)"
        r"(?=[\u4e00-\u9fff]{0,3}节(?![课能省约奏目])|黄金周|小长假|假期|长假)",
        _feast,
        "dates",
    ),
    rule("0", rf"{_FREE}(?P<month>11|12|3|6)\.(?P<day>11|12|15|18)(?=\s?(?:{_SHOPPING}|购物节|狂欢节|晚会))", _feast, "dates"),
    rule("0", r"(?<=\")(?P<digits>1[89]\d\d|20\d\d)(?=\")", _title, "dates"),
    numeric("(", r"(?<=[一二三四五六七八九高初级])\((?P<digits>\d{1,2})\)(?=班)", _class),
    numeric("0", r"(?:(?<=GB/T )|(?<=GB/T)|(?<=GB )|(?<=ISO )|(?<=IEC ))\d{3,5}(?:-\d{4})?(?!\d)", _standard),
    numeric("#", r"(?<=\d)#(?=\s?[\u4e00-\u9fff，。、,.)]|\s?$)", (None, "号")),
    numeric(
        "a",
        r"(?<=[京沪津渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼])[A-Z][•\s-]?(?=[A-Z]{0,5}\d)[A-Z0-9]{5,6}(?![A-Za-z0-9])",
        _plate,
    ),
    numeric("0", rf"{_FREE}(?:{_SLANG})(?!\d|[,.]\d|\s?[-+×÷*=]\s?\d)", _spelled),
    numeric("0", r"(?:(?<![\s\S])|(?<=[\n。!?]))(?:6{2,6}|8{2,3}|88?6|5{2,6}|9{2,3})(?=[，,~!。\s]|$)(?!,\d)", _spelled),
    numeric("0", r"(?<![\d.,第共有约])(?P<digits>[089]\d)(?=款(?:的|车|[^，。]{0,6}(?:车|型)))", _house),
    numeric("0", r"(?:(?<=[今明去前后]年)|(?<=[今明去前后]年是))20\d\d(?=[，。、,.;!?年]|$)", _spelled),
    rule("0", rf"{_FREE}(?:9\d{{2,4}}|1[0-9]{{2,4}}){_END}(?![-~]\d)", _service, "phone"),
    numeric(
        "0",
        rf"{_FREE}(?<!\d )(?:\d{{2,6}}(?: \d{{2,6}}){{1,5}}|\d{{4,12}}-\d{{2,8}}(?![-\d])|"
        rf"\d{{3,30}}){_END}(?!(?<!\d{{8}})[-~]\d| \d)",
        (None, _code),
    ),
    numeric("0", rf"{_FREE}\d{{9,15}}{_END}", _long),
    numeric("0", rf"(?<![\d.,])(?P<digits>\d{{2,4}}){_END}", _model),
    numeric("-", r"(?<=[歼轰运直苏])-(?P<digits>\d{1,3})(?!\d)", _hyphenated_model),
    numeric(
        "-",
        r"(?:(?<=东风)|(?<=巨浪)|(?<=鹰击)|(?<=红旗)|(?<=米格)|(?<=长征)|(?<=翼龙)|(?<=彩虹))-(?P<digits>\d{1,3})(?!\d)",
        _hyphenated_model,
    ),
    numeric("0", rf"(?<![\d.,])(?P<digits>\d[05])(?=\s?后{_GENERATION_NOT})", _house),
    rule("0", r"(?<![\d.,])(?P<digits>\d\d)(?=\s?年(?:出生|生人|生的|入学|毕业|参军|入伍))", _house, "dates"),
    rule("0", r"(?<![\d.,])(?P<digits>\d\d)(?=\s?年(?!\s?\d{1,2}\s?月))", _short_year, "dates"),
    numeric(
        "0", r"(?<![\d.,])(?P<digits>\d{2})(?=式(?:坦克|手枪|步枪|机枪|冲锋枪|火炮|自动|装甲|榴弹|高射|轻|重|军|狙击))", _house
    ),
    numeric("0", r"(?<![\d.,])(?P<digits>9[258]|89)(?=\s?[号#]?\s?(?:汽油|油\b|油价|油箱|乙醇))", _house),
    numeric("0", r"(?<![\d.,])(?P<digits>(?:19|20)\d\d)(?=\s?[级届](?![\d台石]))", _house),
    numeric(
        "0", r"(?<![\d.,])(?P<digits>\d\d)(?=\s?级(?:新生|学生|本科|研究生|硕士|博士|毕业生|学弟|学妹|学长|学姐|校友))", _house
    ),
    numeric("0", r"(?:(?<=[路街巷弄道])|(?<=[路街巷弄道] ))(?P<digits>\d{4})(?=\s?[号弄])", _house),
    numeric("0", r"(?<!\d)(?<!\d[.,:/-])(?P<low>\d{1,3})\s?[-–]\s?(?P<high>\d{1,3})(?![\d%]|[-:.,/]\d|\s?[A-Za-z℃°])", _score),
]
