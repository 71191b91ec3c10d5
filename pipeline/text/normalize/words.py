"""Words: the tables of what is said for units, currencies, months, signs and abbreviations, in both languages.

In:    nothing
Out:   constants
Owns:  nothing
Never: patterns, numbers
"""


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

UNITS: dict[str, tuple[str, str, str]] = {  # symbol: English for one, for more, Chinese
    "km/h": ("kilometer per hour", "kilometers per hour", "公里每小时"),
    "kmh": ("kilometer per hour", "kilometers per hour", "公里每小时"),
    "kph": ("kilometer per hour", "kilometers per hour", "公里每小时"),
    "mph": ("mile per hour", "miles per hour", "英里每小时"),
    "m/s²": ("meter per second squared", "meters per second squared", "米每二次方秒"),
    "m/s": ("meter per second", "meters per second", "米每秒"),
    "km/s": ("kilometer per second", "kilometers per second", "公里每秒"),
    "kg/m³": ("kilogram per cubic meter", "kilograms per cubic meter", "千克每立方米"),
    "kg/m²": ("kilogram per square meter", "kilograms per square meter", "千克每平方米"),
    "g/cm³": ("gram per cubic centimeter", "grams per cubic centimeter", "克每立方厘米"),
    "mg/L": ("milligram per liter", "milligrams per liter", "毫克每升"),
    "mg/dL": ("milligram per deciliter", "milligrams per deciliter", "毫克每分升"),
    "mmol/L": ("millimole per liter", "millimoles per liter", "毫摩尔每升"),
    "μg/m³": ("microgram per cubic meter", "micrograms per cubic meter", "微克每立方米"),
    "MB/s": ("megabyte per second", "megabytes per second", "兆字节每秒"),
    "GB/s": ("gigabyte per second", "gigabytes per second", "吉字节每秒"),
    "KB/s": ("kilobyte per second", "kilobytes per second", "千字节每秒"),
    "kbps": ("kilobit per second", "kilobits per second", "千比特每秒"),
    "Kbps": ("kilobit per second", "kilobits per second", "千比特每秒"),
    "Mbps": ("megabit per second", "megabits per second", "兆比特每秒"),
    "Gbps": ("gigabit per second", "gigabits per second", "吉比特每秒"),
    "r/min": ("revolution per minute", "revolutions per minute", "转每分钟"),
    "rpm": ("revolution per minute", "revolutions per minute", "转每分钟"),
    "RPM": ("revolution per minute", "revolutions per minute", "转每分钟"),
    "bpm": ("beat per minute", "beats per minute", "次每分钟"),
    "BPM": ("beat per minute", "beats per minute", "次每分钟"),
    "fps": ("frame per second", "frames per second", "帧每秒"),
    "FPS": ("frame per second", "frames per second", "帧每秒"),
    "km²": ("square kilometer", "square kilometers", "平方公里"),
    "m²": ("square meter", "square meters", "平方米"),
    "cm²": ("square centimeter", "square centimeters", "平方厘米"),
    "mm²": ("square millimeter", "square millimeters", "平方毫米"),
    "m³": ("cubic meter", "cubic meters", "立方米"),
    "cm³": ("cubic centimeter", "cubic centimeters", "立方厘米"),
    "mm³": ("cubic millimeter", "cubic millimeters", "立方毫米"),
    "sq ft": ("square foot", "square feet", "平方英尺"),
    "ft²": ("square foot", "square feet", "平方英尺"),
    "km": ("kilometer", "kilometers", "公里"),
    "dm": ("decimeter", "decimeters", "分米"),
    "cm": ("centimeter", "centimeters", "厘米"),
    "mm": ("millimeter", "millimeters", "毫米"),
    "μm": ("micrometer", "micrometers", "微米"),
    "nm": ("nanometer", "nanometers", "纳米"),
    "mi": ("mile", "miles", "英里"),
    "yd": ("yard", "yards", "码"),
    "ft": ("foot", "feet", "英尺"),
    "kg": ("kilogram", "kilograms", "公斤"),
    "Kg": ("kilogram", "kilograms", "公斤"),
    "KG": ("kilogram", "kilograms", "公斤"),
    "mg": ("milligram", "milligrams", "毫克"),
    "μg": ("microgram", "micrograms", "微克"),
    "lb": ("pound", "pounds", "磅"),
    "lbs": ("pound", "pounds", "磅"),
    "oz": ("ounce", "ounces", "盎司"),
    "ml": ("milliliter", "milliliters", "毫升"),
    "mL": ("milliliter", "milliliters", "毫升"),
    "dl": ("deciliter", "deciliters", "分升"),
    "dL": ("deciliter", "deciliters", "分升"),
    "cc": ("cubic centimeter", "cubic centimeters", "毫升"),
    "ha": ("hectare", "hectares", "公顷"),
    "kB": ("kilobyte", "kilobytes", "千字节"),
    "KB": ("kilobyte", "kilobytes", "千字节"),
    "MB": ("megabyte", "megabytes", "兆字节"),
    "GB": ("gigabyte", "gigabytes", "吉字节"),
    "TB": ("terabyte", "terabytes", "太字节"),
    "PB": ("petabyte", "petabytes", "拍字节"),
    "KiB": ("kibibyte", "kibibytes", "千字节"),
    "MiB": ("mebibyte", "mebibytes", "兆字节"),
    "GiB": ("gibibyte", "gibibytes", "吉字节"),
    "TiB": ("tebibyte", "tebibytes", "太字节"),
    "Hz": ("hertz", "hertz", "赫兹"),
    "kHz": ("kilohertz", "kilohertz", "千赫兹"),
    "KHz": ("kilohertz", "kilohertz", "千赫兹"),
    "MHz": ("megahertz", "megahertz", "兆赫兹"),
    "GHz": ("gigahertz", "gigahertz", "吉赫兹"),
    "dB": ("decibel", "decibels", "分贝"),
    "mW": ("milliwatt", "milliwatts", "毫瓦"),
    "kW": ("kilowatt", "kilowatts", "千瓦"),
    "KW": ("kilowatt", "kilowatts", "千瓦"),
    "MW": ("megawatt", "megawatts", "兆瓦"),
    "GW": ("gigawatt", "gigawatts", "吉瓦"),
    "kWh": ("kilowatt hour", "kilowatt hours", "千瓦时"),
    "kwh": ("kilowatt hour", "kilowatt hours", "千瓦时"),
    "MWh": ("megawatt hour", "megawatt hours", "兆瓦时"),
    "Wh": ("watt hour", "watt hours", "瓦时"),
    "mAh": ("milliampere hour", "milliampere hours", "毫安时"),
    "mA": ("milliampere", "milliamperes", "毫安"),
    "mV": ("millivolt", "millivolts", "毫伏"),
    "kV": ("kilovolt", "kilovolts", "千伏"),
    "Ω": ("ohm", "ohms", "欧姆"),
    "kΩ": ("kilohm", "kilohms", "千欧"),
    "MΩ": ("megohm", "megohms", "兆欧"),
    "Pa": ("pascal", "pascals", "帕"),
    "hPa": ("hectopascal", "hectopascals", "百帕"),
    "kPa": ("kilopascal", "kilopascals", "千帕"),
    "MPa": ("megapascal", "megapascals", "兆帕"),
    "psi": ("pound per square inch", "pounds per square inch", "磅每平方英寸"),
    "kJ": ("kilojoule", "kilojoules", "千焦"),
    "kcal": ("kilocalorie", "kilocalories", "千卡"),
    "cal": ("calorie", "calories", "卡"),
    "mol": ("mole", "moles", "摩尔"),
    "rad": ("radian", "radians", "弧度"),
    "px": ("pixel", "pixels", "像素"),
    "dpi": ("dot per inch", "dots per inch", "点每英寸"),
    "ppm": ("part per million", "parts per million", "百万分之一"),
    "hrs": ("hour", "hours", "小时"),
    "hr": ("hour", "hours", "小时"),
    "min": ("minute", "minutes", "分钟"),
    "mins": ("minute", "minutes", "分钟"),
    "sec": ("second", "seconds", "秒"),
    "secs": ("second", "seconds", "秒"),
    "ms": ("millisecond", "milliseconds", "毫秒"),
    "μs": ("microsecond", "microseconds", "微秒"),
    "ns": ("nanosecond", "nanoseconds", "纳秒"),
}
CLOSE_UNITS: dict[str, tuple[str, str, str]] = {  # one letter is a unit only right behind its number
    "m": ("meter", "meters", "米"),
    "g": ("gram", "grams", "克"),
    "t": ("ton", "tons", "吨"),
    "L": ("liter", "liters", "升"),
    "l": ("liter", "liters", "升"),
    "h": ("hour", "hours", "小时"),
    "s": ("second", "seconds", "秒"),
    "W": ("watt", "watts", "瓦"),
    "V": ("volt", "volts", "伏"),
    "J": ("joule", "joules", "焦耳"),
    "N": ("newton", "newtons", "牛"),
    "in": ("inch", "inches", "英寸"),
    "″": ("inch", "inches", "英寸"),
    "w": ("w", "w", "万"),
}

CURRENCIES: dict[str, tuple[str, str, str, str]] = {  # sign or code: English for one, for more, of its hundredth, Chinese
    "$": ("dollar", "dollars", "cent", "美元"),
    "US$": ("U S dollar", "U S dollars", "cent", "美元"),
    "USD": ("U S dollar", "U S dollars", "cent", "美元"),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", "cent", "港元"),
    "HKD": ("Hong Kong dollar", "Hong Kong dollars", "cent", "港元"),
    "NT$": ("Taiwan dollar", "Taiwan dollars", "cent", "新台币"),
    "TWD": ("Taiwan dollar", "Taiwan dollars", "cent", "新台币"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "澳元"),
    "AUD": ("Australian dollar", "Australian dollars", "cent", "澳元"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "加元"),
    "CAD": ("Canadian dollar", "Canadian dollars", "cent", "加元"),
    "S$": ("Singapore dollar", "Singapore dollars", "cent", "新加坡元"),
    "SGD": ("Singapore dollar", "Singapore dollars", "cent", "新加坡元"),
    "€": ("euro", "euros", "cent", "欧元"),
    "EUR": ("euro", "euros", "cent", "欧元"),
    "£": ("pound", "pounds", "penny", "英镑"),
    "GBP": ("pound", "pounds", "penny", "英镑"),
    "¥": ("yuan", "yuan", "", "元"),
    "CNY": ("yuan", "yuan", "", "元"),
    "RMB": ("yuan", "yuan", "", "元"),
    "JPY": ("yen", "yen", "", "日元"),
    "₩": ("won", "won", "", "韩元"),
    "KRW": ("won", "won", "", "韩元"),
    "₹": ("rupee", "rupees", "", "卢比"),
    "INR": ("rupee", "rupees", "", "卢比"),
    "₽": ("ruble", "rubles", "", "卢布"),
    "RUB": ("ruble", "rubles", "", "卢布"),
    "฿": ("baht", "baht", "", "泰铢"),
    "THB": ("baht", "baht", "", "泰铢"),
    "₫": ("dong", "dong", "", "越南盾"),
    "VND": ("dong", "dong", "", "越南盾"),
    "₺": ("lira", "lira", "", "里拉"),
    "₿": ("bitcoin", "bitcoins", "", "比特币"),
    "BTC": ("bitcoin", "bitcoins", "", "比特币"),
    "CHF": ("Swiss franc", "Swiss francs", "", "瑞士法郎"),
}

SCALES = {  # behind an English amount
    "k": "thousand",
    "K": "thousand",
    "M": "million",
    "mn": "million",
    "m": "million",
    "B": "billion",
    "bn": "billion",
    "T": "trillion",
    "tn": "trillion",
    "thousand": "thousand",
    "million": "million",
    "billion": "billion",
    "trillion": "trillion",
}

SIGNS: dict[str, tuple[str, str]] = {  # sign: English, Chinese, wherever it stands alone
    "%": ("percent", "百分号"),
    "‰": ("per mille", "千分号"),
    "‱": ("per ten thousand", "万分号"),
    "&": ("and", "和"),
    "@": ("at", "艾特"),
    "+": ("plus", "加"),
    "±": ("plus or minus", "正负"),
    "=": ("equals", "等于"),
    "≡": ("is identical to", "恒等于"),
    "≈": ("is approximately", "约等于"),
    "≠": ("is not equal to", "不等于"),
    "≤": ("is at most", "小于等于"),
    "≥": ("is at least", "大于等于"),
    "×": ("times", "乘"),
    "÷": ("divided by", "除以"),
    "°": ("degrees", "度"),
    "∞": ("infinity", "无穷大"),
    "√": ("the square root of", "根号"),
    "∑": ("the sum of", "求和"),
    "∏": ("the product of", "求积"),
    "∫": ("the integral of", "积分"),
    "∂": ("partial", "偏"),
    "∈": ("in", "属于"),
    "∩": ("intersection", "交"),
    "∪": ("union", "并"),
    "∅": ("the empty set", "空集"),
    "→": ("to", "到"),
    "←": ("from", "来自"),
    "↑": ("up", "上升"),
    "↓": ("down", "下降"),
    "§": ("section", "章节"),
    "©": ("copyright", "版权"),
    "¢": ("cents", "美分"),
}
GREEK: dict[str, tuple[str, str]] = {
    "α": ("alpha", "阿尔法"),
    "β": ("beta", "贝塔"),
    "γ": ("gamma", "伽马"),
    "δ": ("delta", "德尔塔"),
    "ε": ("epsilon", "艾普西隆"),
    "ζ": ("zeta", "泽塔"),
    "η": ("eta", "伊塔"),
    "θ": ("theta", "西塔"),
    "ι": ("iota", "约塔"),
    "κ": ("kappa", "卡帕"),
    "λ": ("lambda", "拉姆达"),
    "μ": ("mu", "缪"),
    "ν": ("nu", "纽"),
    "ξ": ("xi", "克西"),
    "ο": ("omicron", "奥密克戎"),
    "π": ("pi", "派"),
    "ρ": ("rho", "柔"),
    "σ": ("sigma", "西格玛"),
    "τ": ("tau", "陶"),
    "υ": ("upsilon", "宇普西隆"),
    "φ": ("phi", "斐"),
    "χ": ("chi", "卡"),
    "ψ": ("psi", "普西"),
    "ω": ("omega", "欧米伽"),
    "ς": ("sigma", "西格玛"),
}

ABBREVIATIONS = {  # English, the dot included where there is one
    "Mr.": "Mister",
    "Mrs.": "Missus",
    "Ms.": "Miz",
    "Dr.": "Doctor",
    "Prof.": "Professor",
    "Jr.": "Junior",
    "Sr.": "Senior",
    "vs.": "versus",
    "vs": "versus",
    "etc.": "et cetera",
    "e.g.": "for example",
    "i.e.": "that is",
    "approx.": "approximately",
    "dept.": "department",
    "est.": "established",
    "Inc.": "Incorporated",
    "Ltd.": "Limited",
    "Co.": "Company",
    "Corp.": "Corporation",
    "Gov.": "Governor",
    "Gen.": "General",
    "Sen.": "Senator",
    "Rep.": "Representative",
    "Capt.": "Captain",
    "Lt.": "Lieutenant",
    "Col.": "Colonel",
    "Sgt.": "Sergeant",
    "Ave.": "Avenue",
    "Blvd.": "Boulevard",
    "Mt.": "Mount",
    "Fig.": "Figure",
    "fig.": "figure",
    "vol.": "volume",
    "Vol.": "Volume",
    "pp.": "pages",
    "w/o": "without",
    "w/": "with",
    "b/c": "because",
    "al.": "al",
    "Ph.D.": "P H D",
    "PhD": "P H D",
    "a.k.a.": "also known as",
}
CONTRACTIONS = {
    # Upstream's training text has no apostrophes, so "don't" is the word "dont"; a contraction whose letters are
    # another word (I'll, we're, I'd) is written out instead.
    "i'll": "I will",
    "we'll": "we will",
    "he'll": "he will",
    "she'll": "she will",
    "it'll": "it will",
    "who'll": "who will",
    "you'll": "you will",
    "they'll": "they will",
    "that'll": "that will",
    "there'll": "there will",
    "we're": "we are",
    "you're": "you are",
    "they're": "they are",
    "who're": "who are",
    "i'd": "I would",
    "we'd": "we would",
    "she'd": "she would",
    "he'd": "he would",
    "i'm": "I am",
    "i've": "I have",
    "we've": "we have",
    "you've": "you have",
    "they've": "they have",
    "o'clock": "o clock",
    "ma'am": "maam",
    "y'all": "you all",
    "let's": "lets",
}

WORD_ACRONYMS = frozenset(
    _words(  # in capitals, but said as words
        "NASA NATO UNESCO UNICEF OPEC FIFA UEFA NAFTA ASEAN AIDS SARS COVID LASER RADAR SONAR RAM ROM SIM PIN LAN RAID GIF "
        "JPEG BASIC CUDA JSON YAML ASCII UNIX LINUX LATEX NUMA SWAT SCUBA TESLA IKEA LEGO NIKE VISA ZARA BOSE ASUS NVIDIA "
        "INTEL CHAT OK NO YES AND THE NOT BUT FOR ALL ARE YOU WAS HAS HAD HER HIS HIM ITS OUR OUT SEE TWO WAY WHO BOY DID GET "
        "LET PUT SAY SHE TOO USE NEW NOW OLD DAY MAN ANY CAN ONE MAY ON IN IS IT TO OF OR SO UP WE HE ME MY BE BY DO GO IF AN "
        "AS AT AM A I O OH HI WOW BIG TOP HOT RED SUN DOG CAT CAR RUN WIN END ADD ASK BAD BED BIT BOX BUY CUT EAT FAR FEW FIT "
        "FUN GOD GUN HIT JOB KEY LAW LAY LOT LOW MAP NET OIL PAY PER RAW ROW SAD SET SEX SIT SIX SKY TAX TEA TEN TIE TRY WAR "
        "WET WHY YET ZOO STOP HELP WILL MR MRS MS DR"
    )
)
SPELLED_ACRONYMS = frozenset(
    _words(  # with vowels where words have them, but said letter by letter
        "IEEE USSR AAAI ICML AWS API APIS AI UI UX IO IP ID OS OA UAE USA EU UK US UN UEFI ISO IOU ATM CEO CFO CTO COO CIO "
        "IPO OECD OLED ACLU NAACP ESPN"
    )
)
TOP_LEVEL_DOMAINS = _words(
    "com org net edu gov io ai cn co uk us de fr jp kr eu info dev app me tv xyz hk tw ca au in ru biz int mil"
)
DOMAIN_WORDS = frozenset(
    ["com", "org", "net", "edu", "gov", "info", "dev", "app", "biz", "co", "me", "mil", "int", "localhost"]
)
FILE_ENDINGS = _words(
    "pdf txt md doc docx xls xlsx ppt pptx csv json yaml yml toml xml html htm css js ts py ipynb java c cpp h hpp rs go "
    "rb php sh bat exe dll zip tar gz rar jpg jpeg png gif svg bmp webp mp3 mp4 wav flac ogg avi mov mkv log ini cfg conf "
    "sql db pt bin"
)
PLAIN_ENDINGS = frozenset(["java", "bat", "zip", "tar", "log", "bin", "go", "doc"])
REGNAL = _words(
    "Henry Louis Charles George James William Edward Richard Elizabeth Philip Napoleon Pope Paul Pius John Francis Peter"
)
NUMBERED = _words(
    "Chapter Part Section Volume Book Act Scene Phase War Type Class Stage Level Figure Table Appendix Article Tier Grade "
    "Season Episode Title Unit Lesson Step Version Round Bowl Fantasy"
)
HTML_BLOCKS = _words("p div br hr li ul ol tr table h1 h2 h3 h4 h5 h6 section article blockquote pre header footer option")
HTML_INLINE = _words(
    "a b i u s em strong span code small big sub sup font mark del ins q cite kbd img td th thead tbody tfoot html head "
    "body title meta link script style nav main aside form label input button select textarea video audio source svg path "
    "iframe abbr center figure figcaption details summary tt var samp ruby rt rp wbr"
)

MEASURES = _words(  # what is counted: 2 before one of them is 两
    "个 只 条 张 位 名 件 次 天 年 周 小时 分钟 秒 点 岁 块 元 角 公里 里 米 公斤 斤 吨 克 升 本 "
    "杯 瓶 碗 辆 台 部 家 间 座 栋 层 套 份 种 类 项 步 倍 句 段 章 篇 首 幅 颗 粒 棵 根 支 枝 "
    "把 对 双 组 群 批 头 匹 架 艘 场 顿 片 美元 欧元 英镑 日元 港元 人 度 星期 礼拜 遍 趟 回 口 "
    "千克 厘米 毫米 平方 立方 亩 寸 尺 帧 字节 像素 方 行 列 门 节 封 枚 盒 箱 包 袋 桶 盘 盏 朵 面 "
    "扇 笔 国 省 市 县 村 校 万 千 亿 晚 夜 轮 样 员 分"
)
