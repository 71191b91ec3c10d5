"""Mandarin texts: words by frequency, everyday sentences, numbers, as pinyin for the teacher.

In:    a random generator
Out:   pinyin with tone numbers: words, syllables of one word together, commas and full stops
Owns:  the templates
Never: audio, the model's tokens
"""

import random
import re
from functools import cache
from itertools import accumulate

from wordfreq import top_n_list

from scripts.train_demo.held_out import held_out_texts
from scripts.train_demo.syllables import CHARACTER, readings, syllables

COMMON_WORDS = 24_000
MAX_SYLLABLES = 28
_DIGITS = "零一二三四五六七八九"
_SLOTS = {
    "who": (
        "我 你 他 她 我们 你们 他们 大家 老师 医生 朋友 妈妈 爸爸 孩子 经理 同事 "
        "学生 司机 哥哥 妹妹 弟弟 姐姐 爷爷 奶奶 邻居 客人"
    ),
    "time": (
        "今天 明天 昨天 现在 早上 晚上 下午 中午 周末 星期一 星期五 去年 明年 下个月 "
        "上个星期 刚才 以后 春天 夏天 秋天 冬天 半夜"
    ),
    "place": (
        "北京 上海 广州 成都 家里 学校 公司 医院 机场 车站 超市 公园 图书馆 饭店 "
        "银行 邮局 海边 山上 城里 南方 西安 香港 楼下 门口"
    ),
    "thing": (
        "书 手机 电脑 衣服 水果 咖啡 茶 米饭 面条 牛奶 报告 电影 音乐 照片 钥匙 "
        "雨伞 车票 礼物 消息 问题 计划 房子 自行车 眼镜 文件 鸡蛋"
    ),
    "do": ("看 买 找 卖 带 拿 用 送 喜欢 需要 想要 忘记 准备 打开 收到 知道 讨论 检查 修理 整理 介绍"),
    "act": (
        "吃饭 睡觉 上班 上课 开会 跑步 游泳 唱歌 跳舞 旅行 回家 学习 工作 休息 "
        "打电话 看电视 做饭 洗衣服 买东西 聊天 写作业 爬山"
    ),
    "how": "很 非常 有点 特别 真 不太 比较 最 太 更",
    "quality": (
        "好 大 小 快 慢 高兴 漂亮 便宜 贵 忙 累 热 冷 重要 简单 困难 有意思 方便 安静 新鲜 危险 干净 聪明 年轻 着急 奇怪"
    ),
    "count": "一个 两个 三个 四本 五张 六件 七次 八天 九年 十块钱 几个 很多 一点",
    "start": ("请问 对不起 谢谢 不好意思 你好 大家好 没关系 好的 其实 但是 所以 因为 如果 虽然 不过 听说 我觉得 当然"),
    "end": "吗 吧 呢 了 啊",
}
_TEMPLATES = (
    "{who} {time} {act}",
    "{time} {who} 在 {place} {act}",
    "{who} {do} {count} {thing}",
    "{who} 的 {thing} {how} {quality}",
    "{start}，{who} {do} {thing} {end}",
    "{time} 的 天气 {how} {quality}",
    "{who} 想 去 {place} {act}",
    "{start}，{place} 怎么 走",
    "{who} 把 {thing} 放 在 {place} 了",
    "这 是 {who} 的 {thing}，那 是 {who} 的 {thing}",
    "{who} 和 {who} 一起 {act}，{who} 没有 {act}",
    "如果 {time} 下雨，{who} 就 不 {act} 了",
    "{place} 离 {place} {how} 远，坐 火车 要 {number} 个 小时",
    "一共 {number} 块 钱",
    "现在 {number} 点 {number} 分",
    "{who} 的 电话 是 {digits}",
    "{number} 月 {number} 号，{who} {act}",
    "{word} {word} 的 {word} {how} {quality}",
    "{who} {do} {word} {word}",
    "关于 {word} 的 {word}，{who} {how} {quality}",
    "{word}，{word}，还有 {word}",
    "{who} 说 {word} {word} {word}",
    "因为 {word} {quality}，所以 {who} 要 {word}",
)


def mandarin(draw: random.Random) -> str:
    """Returns pinyin of a text, never of a judged one."""
    while True:
        kind = draw.choices((_sentence, _words), (55, 45))[0]
        text = kind(draw)
        if "".join(CHARACTER.findall(text)) not in held_out_texts():
            written = pinyin(text)
            if written is not None:
                return written


def pinyin(text: str) -> str | None:
    """Returns the pinyin of words separated by spaces; None if a syllable is not taught."""
    found = []
    for piece in re.findall(r"[\u4e00-\u9fff]+|[，。,.]", text):
        if CHARACTER.match(piece):
            syllables_ = readings(piece)
            if not all(one in syllables() for one in syllables_):
                return None
            found.append("".join(syllables_))
        elif found:
            found[-1] += {"，": ",", "。": "."}.get(piece, piece)
    return " ".join(found) if found else None


def _sentence(draw: random.Random) -> str:
    text = re.sub(r"{(\w+)}", lambda slot: _filled(slot[1], draw), draw.choice(_TEMPLATES))
    return f"{text}。" if draw.random() < 0.6 else text


def _filled(slot: str, draw: random.Random) -> str:
    if slot == "word":
        return _word(draw)
    if slot == "number":
        return number(draw.randint(1, 99))
    if slot == "digits":
        return "".join(draw.choices(_DIGITS, k=draw.randint(3, 11)))
    return draw.choice(_SLOTS[slot].split())


def number(value: int) -> str:
    """Returns a number below 100 in characters."""
    tens, ones = divmod(value, 10)
    lead = "" if tens == 0 else "十" if tens == 1 else f"{_DIGITS[tens]}十"
    return lead + (_DIGITS[ones] if ones or not tens else "")


def _words(draw: random.Random) -> str:
    words = [_word(draw)]
    while draw.random() < 0.85 and len("".join(words)) < MAX_SYLLABLES - 4:
        words.append(_word(draw))
    return " ".join(f"{word}，" if draw.random() < 0.1 else word for word in words[:-1]) + f" {words[-1]}"


def _word(draw: random.Random) -> str:
    words, totals = _common()
    return draw.choices(words, cum_weights=totals)[0]


@cache
def _common() -> tuple[list[str], list[float]]:
    words = [word for word in top_n_list("zh", COMMON_WORDS) if len(word) <= 5 and all(map(CHARACTER.match, word))]
    return words, list(accumulate((40 + rank) ** -0.5 for rank in range(len(words))))
