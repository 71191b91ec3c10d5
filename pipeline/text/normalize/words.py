"""Words: tables of months, abbreviations, acronyms, endings and tags, with their spoken forms.

Out:   constants
Never: patterns, numbers
"""

from pipeline.text.normalize.tables import word_table


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
MONTH_NUMBERS = (
    {name.lower(): number for number, name in enumerate(MONTHS, 1)}
    | {name[:3].lower(): number for number, name in enumerate(MONTHS, 1)}
    | {"sept": 9}
)
ABBREVIATIONS = word_table("abbreviation")
"""English, the dot included where there is one; those that depend on their neighbours are in abbreviations"""
STATES = word_table("state")  # behind a comma
CONTRACTIONS = word_table("contraction")
SUBJECTS = frozenset(_words("i you he she it we they who there that"))
"""words whose 'd is had or would"""
PARTICIPLES = _words(  # that do not end in ed, and are no other form of a verb that would stand behind would
    "been had done gone seen taken given eaten written driven ridden risen fallen forgotten gotten chosen spoken broken "
    "stolen frozen woken hidden bitten beaten shaken mistaken forgiven forbidden sworn torn worn born borne thrown known "
    "grown flown blown drawn shown begun sung drunk swum rung sunk shrunk sprung stung swung told sold heard felt kept left "
    "slept swept wept met fed led fled bled held built sent spent lent bent lost made paid said laid found bought brought "
    "caught taught thought fought sought sat stood understood won shot dug hung stuck struck got meant dreamt learnt burnt "
    "spoilt dealt forsaken withdrawn overcome become"
)
WORD_ACRONYMS = frozenset(
    _words(  # in capitals, but read as words
        "NASA NATO UNESCO UNICEF OPEC FIFA UEFA NAFTA ASEAN AIDS SARS COVID LASER RADAR SONAR RAM ROM SIM PIN LAN RAID "
        "GIF JPEG BASIC CUDA JSON YAML ASCII UNIX LINUX LATEX NUMA SWAT SCUBA TESLA IKEA LEGO NIKE VISA ZARA BOSE ASUS "
        "NVIDIA INTEL CHAT OK NO YES AND THE NOT BUT FOR ALL ARE YOU WAS HAS HAD HER HIS HIM ITS OUR OUT SEE TWO WAY WHO "
        "BOY DID GET LET PUT SAY SHE TOO USE NEW NOW OLD DAY MAN ANY CAN ONE MAY ON IN IS IT TO OF OR SO UP WE HE ME MY "
        "BE BY DO GO IF AN AS AT AM A I O OH HI WOW BIG TOP HOT RED SUN DOG CAT CAR RUN WIN END ADD ASK BAD BED BIT BOX "
        "BUY CUT EAT FAR FEW FIT FUN GOD GUN HIT JOB KEY LAW LAY LOT LOW MAP NET OIL PAY PER RAW ROW SAD SET SEX SIT SIX "
        "SKY TAX TEA TEN TIE TRY WAR WET WHY YET ZOO STOP HELP WILL MR MRS MS DR HOW GOT AH OFF OWN AGO GUY HUH HEY SAW "
        "MEN AGE SON AIR MOM KID DAD DIE DUE MET ACT WON ETC FAN ART SIR GAS BET EYE ICE BAR FAT RAN FIX FLY LIE SEA CUP "
        "BUS MAD ODD PET BAG FLU POP AID GYM ILL NOR YEA YEP JOE PRO ARM DRY MIX LEG BAY TIM TOM APP TON TIP MAX BAN FOX "
        "CRY NAH FED VIA YUP VAN TAP DIG FEE GAP HIP JAM LAP LID MUD NUT PAN PIG POT RAT RIB RIP SIP TAG TOE TOY TUB WAX "
        "WEB ZIP FROG COP SELL FREE MATH"
    )
)
SPELLED_ACRONYMS = frozenset(
    _words(  # they look like words, but are read letter by letter
        "IEEE USSR AAAI ICML AWS API APIS AI UI UX IO IP ID OS OA UAE USA EU UK US UN UEFI ISO IOU ATM CEO CFO CTO COO CIO "
        "IPO OECD OLED ACLU NAACP ESPN UCLA NYPD LAPD NYSE AMEX ACDC ADHD ECG EKG EEG IATA ICAO YMCA"
    )
)
MIXED_CASE = {  # letters of both cases whose reading is not that of their parts
    "PhD": "P H D",
    "PhDs": "P H D s",
    "BSc": "B S C",
    "MSc": "M S C",
    "pH": "P H",
    "MoMA": "MoMA",
    "LaTeX": "LaTeX",
    "eV": "E V",
    "IoT": "I O T",
    "YoY": "Y O Y",
    "DoD": "D O D",
    "VoIP": "VoIP",
}
TOP_LEVEL_DOMAINS = _words(
    "com org net edu gov io ai cn co uk us de fr jp kr eu info dev app me tv xyz hk tw ca au in ru biz int mil"
)
DOMAIN_WORDS = frozenset(
    ["com", "org", "net", "edu", "gov", "info", "dev", "app", "biz", "co", "me", "mil", "int", "localhost"]
)
FILE_ENDINGS = _words(
    "pdf txt md doc docx xls xlsx ppt pptx csv json yaml yml toml xml html htm css js ts py ipynb java c cpp h hpp rs go "
    "rb php sh bat exe dll zip tar gz rar jpg jpeg png gif svg bmp webp mp3 mp4 wav flac ogg avi mov mkv log ini cfg conf "
    "sql db pt bin apk ipa dmg iso epub mobi srt vtt webm m4a aac heic psd odt rtf tsx jsx vue sqlite exe msi deb rpm"
)
PLAIN_ENDINGS = frozenset(["java", "bat", "zip", "tar", "log", "bin", "go", "doc"])
REGNAL = _words(
    "Henry Louis Charles George James William Edward Richard Elizabeth Philip Napoleon Pope Paul Pius John Francis Peter"
)
NUMBERED = _words(
    "Chapter Part Section Volume Book Act Scene Phase War Type Class Stage Level Figure Table Appendix Article Tier Grade "
    "Season Episode Title Unit Lesson Step Version Round Bowl Fantasy Hall Canto Psalm Zone Group Block Level Sonata Symphony "
    "Concerto Exhibit Schedule Annex Division Category Protocol Treaty"
)
HTML_BLOCKS = _words("p div br hr li ul ol tr table h1 h2 h3 h4 h5 h6 section article blockquote pre header footer option")
HTML_INLINE = _words(
    "a b i u s em strong span code small big sub sup font mark del ins q cite kbd img td th thead tbody tfoot html head "
    "body title meta link script style nav main aside form label input button select textarea video audio source svg path "
    "iframe abbr center figure figcaption details summary tt var samp ruby rt rp wbr"
)

FUNCTION_WORDS = frozenset(  # English sentences have them, names and labels do not
    _words(
        "the an is are was were be been am has have had do does did will would can could should may might must to of in on at "
        "for with from by and or not but this that these those it he she we you they my your his her our their its there here "
        "what when where who how why if as than then so please dont isnt cant very just also about after before only over into"
    )
)
MEASURES = _words(  # what is counted: 2 before one of them is 两
    "个 只 条 张 位 名 件 次 天 年 周 小时 分钟 秒 点 岁 块 元 角 公里 里 米 公斤 斤 吨 克 升 本 "
    "杯 瓶 碗 辆 台 部 家 间 座 栋 层 套 份 种 类 项 步 倍 句 段 章 篇 首 幅 颗 粒 棵 根 支 枝 "
    "把 对 双 组 群 批 头 匹 架 艘 场 顿 片 美元 欧元 英镑 日元 港元 人 度 星期 礼拜 遍 趟 回 口 "
    "千克 厘米 毫米 平方 立方 亩 寸 尺 帧 字节 像素 方 行 列 门 节 封 枚 盒 箱 包 袋 桶 盘 盏 朵 面 "
    "扇 笔 国 省 市 县 村 校 万 千 亿 晚 夜 轮 样 员 分"
)
