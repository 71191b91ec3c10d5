/* Strings: what the page says in Chinese, what errors mean, and the texts to begin with.
 * In:    a text of the page, as it stands in its code; the code of an error
 * Out:   the same in the reader's language
 * Owns:  the language of the document
 * Never: a client's text */

import {looks} from "./state.js";

const {language} = looks.value;
export const isChinese = language === "zh" || (language === "auto" && /^zh\b/i.test(navigator.language));
document.documentElement.lang = isChinese ? "zh-CN" : "en";

export const FIRST_TEXT = "Hello there. This sentence is spoken while it is still being written.";
export const DIALOGUE = "Anna: Who is there?\nBen: It is me.\nAnna: Come in, then.";
export const EXAMPLES = {
  "A sentence": "The boat was red, and the sea was calm that morning.",
  "In Chinese": "今天天气很好，我们去公园走走吧。",
  "Numbers and a date": "On 12 May 2026 it cost $5.20, and room 12 had a good view.",
  "Two people": DIALOGUE,
};

/** Returns a text in the reader's language, with {names} replaced by their values. */
export function t(text, values = {}) {
  const found = isChinese && Object.hasOwn(ZH, text) ? ZH[text] : text;
  return found.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

export const languageName = code => t(code === "en" ? "English" : code === "zh" ? "Chinese" : code);

/** Returns one sentence for an error: the page's own for its code, or the service's words. */
export function sentenceOf({code, param, message}) {
  const own = (ERRORS[`${code}:${param}`] ?? ERRORS[code])?.[isChinese ? 1 : 0];
  return own ?? (code && isChinese ? ZH["The service refuses this."] : message);
}

// By code, or code:field: English, Chinese. Without an English sentence of its own the service's is good.
const ERRORS = {
  missing_api_key: ["This service asks for a key.", "此服务需要密钥。"],
  invalid_api_key: ["The service has no such key.", "服务不认识这个密钥。"],
  scope_missing: ["This key may not do this.", "此密钥没有这项权限。"],
  quota_exceeded: ["This key has used up its share for now.", "此密钥的额度暂时用完了。"],
  rate_limited: ["Too many requests at once; wait a moment.", "请求太频繁，请稍候。"],
  input_too_long: ["The text is too long for one request.", "文本太长，一次读不完。"],
  no_speakable_text: ["There is nothing to say in this text.", "这段文本里没有可以读的内容。"],
  text_too_hard: ["This sentence could not be spoken; another seed or other words help.", "这句话没能读好，换个种子或换种说法试试。"],
  generation_failed: ["This could not be spoken with this seed; another one helps.", "这个种子没能读好，请换一个。"],
  voice_not_found: ["There is no such voice any more; choose another one.", "找不到这个声音，请另选一个。"],
  overloaded: ["The service is busy; it will be free in a moment.", "服务正忙，请稍候。"],
  deadline_unmeetable: ["The service is busy; it will be free in a moment.", "服务正忙，请稍候。"],
  draining: ["The service is restarting; try again in a moment.", "服务正在重启，请稍候再试。"],
  circuit_open: ["A part of the service rests; try again in a moment.", "服务的一部分暂不可用，请稍候再试。"],
  waking: ["The service wakes up; try again in a moment.", "服务正在唤醒，请稍候再试。"],
  engine_dead: ["A part of the service restarts; try again in a moment.", "服务的一部分正在重启，请稍候再试。"],
  timeout: ["This took too long; try again.", "耗时过长，请重试。"],
  internal_error: ["The service made a mistake; try again.", "服务出错了，请重试。"],
  resume_changed: ["The service has changed meanwhile, so the rest would sound different.", "服务已更新，后面的声音会不一样，请重新朗读。"],
  job_not_found: ["This book is no longer there.", "这本书已经不在了。"],
  share_used_up: ["Your share of the service's storage is used up; delete something.", "您的存储空间已用完，请删除一些内容。"],
  store_full: ["The service's storage is full.", "服务的存储空间已满。"],
  invalid_ssml: [null, "SSML 写法有误。"],
  invalid_document: [null, "无法读取这个文件。"],
  reference_rejected: [null, "这段录音不能用作声音样本。"],
  out_of_range: [null, "有一项数值超出了范围。"],
  "out_of_range:turns": ["The dialogue has more turns than one request may have.", "对话的句数超过了一次请求的上限。"],
};

const ZH = {
  // Places
  "Speak": "朗读", "Dialogue": "对话", "Book": "有声书", "Voices": "声音", "Workshop": "工坊", "Sections": "栏目", "Settings": "设置", "Close": "关闭",
  "Colours": "外观", "as the system": "跟随系统", "light": "浅色", "dark": "深色", "Language of this page": "页面语言", "as the browser": "跟随浏览器",
  "Change the key": "更换密钥", "API": "接口文档", "Source, AGPL-3.0-or-later": "源代码（AGPL-3.0-or-later）",
  "This service asks for a key; it stays in this tab.": "此服务需要密钥；密钥只保存在本标签页。", "Use it": "使用", "Enter a key": "输入密钥",
  // Speak
  [FIRST_TEXT]: "你好。这句话还没有写完，就已经开始读了。", [DIALOGUE]: "小雅：是谁？\n大山：是我。\n小雅：请进。",
  "Text": "文本", "Voice": "声音", "Language": "语言", "as written": "按文本", "English": "英语", "Chinese": "中文", "Speed": "语速", "Seed": "种子", "seed": "种子", "More": "更多",
  "Write what is to be said.": "写下要读的内容。", "{long} of {most} characters": "{long} / {most} 字", "{long} of {most} characters: too long for one request.": "{long} / {most} 字：一次读不完。",
  "Make an audiobook of it": "做成有声书", "Examples": "示例", "A sentence": "一句英语", "In Chinese": "一句中文", "Numbers and a date": "数字和日期", "Two people": "两人对话",
  "choose a voice": "选择声音", "a new one each time": "每次不同", "Draw a seed": "随机种子", "keep": "固定", "Written as": "写法", "text": "文本", "SSML": "SSML",
  "Liveliness": "活泼程度", "First audio": "首段音频", "as the service has it": "按服务设置", "exact": "精确", "sooner, less exact": "更快，略欠精确", "Lexicon": "词典", "none": "无",
  "refine the text first": "先润色文本", "control tags": "控制标签", "light the words": "逐词点亮", "Copy a link to these samples": "复制链接（听到完全相同的声音）",
  "Copied": "已复制", "The browser copies nothing here": "浏览器无法复制", "Copy": "复制", "Copy as": "复制为", "Code": "代码",
  // Player
  "Player": "播放器", "Stop": "停止", "Play": "播放", "Pause": "暂停", "Position": "位置", "Figures": "数据", "Format of the download": "下载格式", "Download": "下载",
  "first audio": "首段音频", "finished after": "完成用时", "length": "时长", "gaps": "中断", "voice": "声音", "left out": "未读", "nothing": "无",
  "Speaking …": "正在朗读…", "Finished.": "读完了。", "Stopped.": "已停止。", "{count} s": "{count} 秒", "{minutes} min {rest} s": "{minutes} 分 {rest} 秒", "{hours} h {minutes} min": "{hours} 小时 {minutes} 分",
  "emoji": "表情符号", "unknown to model": "模型不认识的字", "Preview of {title}": "试听：{title}",
  "Read along: arrow keys go from word to word": "跟读：方向键逐词移动", "time estimated": "时间为估计值",
  // Persons
  "Voice {number}": "声音 {number}", "Voice of the service": "默认声音", "A mixture or a seed": "混合或种子", ", ": "、",
  "deep": "低沉", "low": "偏低", "middle": "中音", "high": "偏高", "very high": "高亢", "warm": "温暖", "soft": "柔和", "clear": "清晰", "bright": "明亮",
  "calm": "平静", "unhurried": "从容", "steady": "平稳", "lively": "轻快",
  // Dialogue
  "Script": "脚本", "Turns": "逐句", "Write as": "写法", "Cast": "角色", "Name": "名字", "Add a speaker": "添加角色", "Remove the silent": "移除没有台词的", "Speaker {number}": "角色 {number}",
  "A line that begins with a name and a colon begins a turn. Any other line goes on with it; begin it with a space if it looks like a name.": "以名字和冒号开头的一行是新的一句；其他行接在后面。如果看起来像名字，请在行首加空格。",
  "Silence between turns [ms]": "句间停顿 [毫秒]", "Stems (zip)": "分轨 (zip)", "Subtitles (SRT)": "字幕 (SRT)", "Subtitles (VTT)": "字幕 (VTT)", "the dialogue's": "同对话",
  "Speaker of turn {number}": "第 {number} 句的角色", "Text of turn {number}": "第 {number} 句的文本", "turn {number}": "第 {number} 句", "Up": "上移", "Down": "下移", "Add": "添加", "Delete": "删除",
  "Its own": "单独设置", "the speaker's": "同角色", "Silence before it [ms]": "之前的停顿 [毫秒]", "Add a turn": "添加一句",
  // Book
  "New book": "新书", "Choose a file": "选择文件", "My books": "我的书", "There is no book yet.": "还没有书。", "Title": "标题", "Status": "状态", "Since": "开始时间", "Job": "书", "Progress": "进度", "Chapters": "章节",
  "Drop a book here, or choose one: EPUB, Markdown, text or SSML.": "把书拖到这里，或选择文件：EPUB、Markdown、文本或 SSML。", "Drop another book here, or choose one.": "把另一本书拖到这里，或选择文件。",
  "The file is read …": "正在读取文件…", "The job is sent …": "正在提交…", "Plan again": "重新规划", "Start again": "重新开始", "Start": "开始", "chapters": "章", "parts": "句", "characters": "字数",
  "length, about": "时长约", "ready": "预计完成", "not known yet": "尚不清楚", "in {length}": "{length}后", "Nr.": "序号", "Parts": "句", "Length": "时长", "Without a title": "无标题",
  "Made as": "格式", "Read as": "文件类型", "as its name says": "按文件名", "Markdown": "Markdown", "subtitles break between words": "字幕可在词间断开",
  "left": "剩余", "{part} of {whole}": "{part} / {whole}", "{part} of about {whole}": "{part} / 约 {whole}", "queued": "排队中", "running": "进行中", "paused": "已暂停", "succeeded": "已完成", "failed": "失败", "cancelled": "已取消",
  "Listen": "收听", "Resume": "继续", "Cancel": "取消", "Say this sentence again": "重读这一句", "Say a sentence again": "重读一句", "Format of the file": "文件格式",
  "Download the book": "下载整本书", "Download what is finished": "下载已完成部分", "Sentence {number} is spoken anew.": "第 {number} 句已重读。", "Chapter {number}": "第 {number} 章",
  "Delete the book, its text and its audio?": "删除这本书及其文本和音频吗？", "Delete it": "删除", "Keep it": "保留", "Sentence {number}, seed {seed}": "第 {number} 句，种子 {seed}", "a new one": "新的种子", "Say it again": "重读",
  "This page plays {own} Hz; the book has {its} Hz: download it.": "本页播放 {own} Hz，此书为 {its} Hz，请下载收听。",
  // Voices
  "Search": "搜索", "deep, calm, alloy …": "低沉、平静、alloy…", "any": "全部", "{part} of {whole} voices": "{part} / {whole} 个声音", "Read again": "刷新", "New voices": "新的声音", "Preview": "试听", "Use": "使用", "Edit": "编辑", "Details": "详情",
  "{name} is changed.": "{name}已修改。", "{name} is deleted.": "{name}已删除。", "{name} is saved.": "{name}已保存。", "{name} speaks now.": "现在由{name}朗读。", "Delete every version of {name}?": "删除{name}的所有版本吗？", "Save": "保存",
  "also": "别名", "licence": "许可", "with consent": "已获同意", "built-in": "内置", "ChatTTS without a speaker embedding": "没有说话人嵌入的 ChatTTS", "Languages": "语言", "Description": "描述", "Licence": "许可", "en, zh": "en, zh", "Save as a voice": "存为声音",
  "Mix voices": "混合声音", "Weight": "比重", "Remove this voice": "移除", "Add a voice": "添加声音", "Use without saving": "直接使用", "The form uses this mixture.": "现在使用这个混合声音。", "anybody": "任何人",
  "A voice from a seed": "由种子生成声音", "Suggest speakers like": "推荐相似的声音", "Suggest four": "推荐四个", "Listen to the speaker of seed {seed}": "试听种子 {seed}", "A voice from a recording": "由录音生成声音",
  "WAV, FLAC, OGG or MP3 of 3 to 30 seconds. Only codes are stored, not the recording.": "3 到 30 秒的 WAV、FLAC、OGG 或 MP3。只保存编码，不保存录音。", "Recording": "录音", "Statement of consent": "同意声明",
  "who agreed to what, and when": "谁在何时同意了什么", "Exactly what is said in it": "录音的原文", "The speaker has agreed to this voice": "说话人已同意使用此声音",
  // Workshop
  "Attempts": "多次尝试", "What will be said": "将怎样读", "Make attempts": "开始尝试", "How many": "次数", "Delete all": "全部删除", "Nothing was spoken in this tab yet.": "本标签页还没有读过内容。", "Keep": "保留", "Copy seed": "复制种子", "Use again": "再次使用",
  "Seed {seed} is kept: what you speak next has it.": "已保留种子 {seed}，下次朗读会用它。", "seed {seed}": "种子 {seed}",
  "The form has its text, voice and seed.": "已填入它的文本、声音和种子。", "Show what will be said": "查看将怎样读", "Refine": "润色", "Refined": "润色后", "Use the refined text": "使用润色后的文本", "Segments": "分段",
  "Struck out: not said. Underlined: said otherwise.": "删除线：不读。下划线：换种读法。", "{characters} characters, {parts} segments, about {length}. Left out: ": "{characters} 字，{parts} 段，约 {length}。未读：",
  "This checkpoint has no refine pass: the text stays as it is.": "此模型不支持润色，文本保持原样。", "Nothing but control tags and fillers was added.": "只加入了控制标签和语气词。", "A word was lost or changed: such a text is not spoken.": "有词丢失或被改动，不会朗读。",
  "said": "读作", "language": "语言", "silence before": "之前停顿", "about": "约", "such as cities": "例如 cities", "Load": "载入", "word": "词", "as": "方式", "sounds": "读音", "Add a word": "添加词", "Word": "词", "Sound": "读音",
  "alias": "替换", "pinyin": "拼音", "Remove this word": "移除", "{count} entries.": "{count} 个词条。", "Saved {count} entries; the form uses “{id}”.": "已保存 {count} 个词条；现在使用“{id}”。", "Deleted.": "已删除。",
  "Read now": "立即刷新", "live": "实时", "{name} {version}, as one ingress replica sees it.": "{name} {version}，由一个入口副本观察。", "No trouble.": "一切正常。", "well": "正常", "level {level}": "级别 {level}",
  "requests in flight": "进行中的请求", "slots in use": "使用中的槽", "waiting for a slot": "等待槽", "95 % sooner than": "95 % 快于", "replies in 5 min": "5 分钟内的回复", "refused": "拒绝", "cut": "中断", "stalled": "停滞", "found in the cache": "缓存命中",
  "degradation": "降级", "in quarantine": "隔离中", "Replicas": "副本", "stage": "阶段", "replica": "副本", "slots": "槽", "waiting": "等待", "round": "轮", "GPU memory": "显存", "state": "状态", "acoustic": "声学", "vocoder": "声码器",
  "Versions": "版本", "version": "版本", "share": "份额", "requests": "请求", "Errors in 5 min": "5 分钟内的错误", "code": "代码", "count": "次数", "in service": "服务中", "Ray's dashboard": "Ray 面板", "Grafana": "Grafana",
  // What went wrong
  "The service does not answer. This page waits for it; nothing you wrote is lost.": "服务没有响应。页面正在等待，您写的内容都在。", "The service is starting. This page waits for it; nothing you wrote is lost.": "服务正在启动。页面正在等待，您写的内容都在。",
  "The service answers again.": "服务已恢复。", "This was not done, since the service does not answer. What you wrote is kept.": "服务没有响应，操作未完成。您写的内容都在。",
  "The service went away in the middle of its reply: {count} s of audio arrived and can be played.": "服务中途断开：已收到 {count} 秒音频，可以播放。", "The service replied with status {status} and no reason.": "服务返回状态 {status}，没有说明原因。",
  "“{title}” could not be read from the service. What you wrote is kept.": "无法载入“{title}”。您写的内容都在。", "The service refuses this.": "服务拒绝了这个请求。", "Try again": "重试", "Speak again": "重新朗读", "field": "字段", "request": "请求",
};
