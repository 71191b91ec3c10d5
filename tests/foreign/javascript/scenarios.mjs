// JavaScript clients of other projects, unmodified, against servers of this project: prints one line of JSON for each scenario.
// It runs beside the packages of package-lock.json (tests/support/foreign.py).
//
//     node scenarios.mjs URL OF_KEYS KEY FULL    # addresses: open, asks for KEY, has no room

import { createDeepgram } from "@ai-sdk/deepgram";
import { createElevenLabs } from "@ai-sdk/elevenlabs";
import { createOpenAI } from "@ai-sdk/openai";
import { DeepgramClient } from "@deepgram/sdk";
import { ElevenLabsClient } from "@elevenlabs/elevenlabs-js";
import { APICallError, generateSpeech } from "ai";
import OpenAI from "openai";

const [URL_OF_ALL, GUARDED, KEY, FULL] = process.argv.slice(2);
const TEXT = "Hello there.";
const ENDLESS = "An endless text.";
const WRONG = "ck-wrong";
const SECOND = 48_000; // bytes
const REFUSALS = { voice: [URL_OF_ALL, "none", "nobody"], key: [GUARDED, WRONG, "alloy"], full: [FULL, "none", "alloy"] };

/** Bytes of a stream. */
async function heard(stream) {
  let bytes = 0;
  for await (const piece of stream) bytes += piece.length;
  return bytes;
}

/** True: a reply that has no end is heard, until the listener leaves. */
async function begins(stream) {
  for await (const piece of stream) return piece.length > 0;
  return false;
}

/** What is told of each refusal of `speak(url, key, voice)`, in the client's own error type. */
async function refused(speak, told) {
  const found = {};
  for (const [name, [url, key, voice]] of Object.entries(REFUSALS)) {
    try {
      await speak(url, key, voice);
      found[name] = "spoken";
    } catch (error) {
      found[name] = told(error);
    }
  }
  const [url, , voice] = REFUSALS.key;
  found.right_key = (await speak(url, KEY, voice)) > 0;
  return found;
}

// OpenAI's package.

const openai = (url = URL_OF_ALL, apiKey = "none") => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const openaiSpeaks = (client, voice = "alloy", more = {}) =>
  client.audio.speech.create({ model: "chattts", voice, input: TEXT, response_format: "pcm", ...more });

async function openai_whole() {
  const reply = await openaiSpeaks(openai());
  const voices = await openai().models.list();
  return { bytes: (await reply.arrayBuffer()).byteLength, models: voices.data.map((model) => model.id) };
}

async function openai_streamed() {
  const reply = await openaiSpeaks(openai(), "alloy", { input: ENDLESS });
  return { bytes: await heard((await openaiSpeaks(openai())).body), begins: await begins(reply.body) };
}

async function openai_refused() {
  const speak = async (url, key, voice) => (await (await openaiSpeaks(openai(url, key), voice)).arrayBuffer()).byteLength;
  return refused(speak, (error) => [error.constructor.name, error.status, error.code, error instanceof OpenAI.APIError]);
}

// ElevenLabs' package.

const elevenlabs = (baseUrl = URL_OF_ALL, apiKey = "none") => new ElevenLabsClient({ baseUrl, apiKey, maxRetries: 0 });
const SPOKEN = { text: TEXT, outputFormat: "pcm_24000" };

async function elevenlabs_whole() {
  const timed = await elevenlabs().textToSpeech.convertWithTimestamps("alloy", SPOKEN);
  const voices = await elevenlabs().voices.getAll();
  return {
    bytes: await heard(await elevenlabs().textToSpeech.convert("alloy", SPOKEN)),
    timed: Buffer.from(timed.audioBase64, "base64").length,
    voices: voices.voices.length > 1,
  };
}

async function elevenlabs_streamed() {
  let timed = 0;
  for await (const piece of await elevenlabs().textToSpeech.streamWithTimestamps("alloy", SPOKEN)) {
    timed += Buffer.from(piece.audioBase64, "base64").length;
  }
  return {
    bytes: await heard(await elevenlabs().textToSpeech.stream("alloy", SPOKEN)),
    timed,
    begins: await begins(await elevenlabs().textToSpeech.stream("alloy", { ...SPOKEN, text: ENDLESS })),
  };
}

async function elevenlabs_refused() {
  const speak = async (url, key, voice) => heard(await elevenlabs(url, key).textToSpeech.convert(voice, SPOKEN));
  return refused(speak, (error) => [error.constructor.name, error.statusCode, error.body.detail.status]);
}

// Vercel's AI SDK with its providers, none of which streams speech.

/** `fetch` for the providers that take no address: theirs is replaced. */
const fetchHere = (url, options) => fetch(String(url).replace(/^https:\/\/api\.(deepgram|elevenlabs)\.(com|io)/, URL_OF_ALL), options);

const aiSpeaks = (url = URL_OF_ALL, apiKey = "none", voice = "alloy") =>
  generateSpeech({
    model: createOpenAI({ baseURL: `${url}/v1`, apiKey }).speech("chattts"),
    text: TEXT,
    voice,
    outputFormat: "pcm",
    maxRetries: 0,
  });

async function ai_whole() {
  const { audio, warnings } = await aiSpeaks();
  return { bytes: audio.uint8Array.length, warnings: warnings.length };
}

async function ai_refused() {
  const speak = async (...where) => (await aiSpeaks(...where)).audio.uint8Array.length;
  return refused(speak, (error) => [
    error.name,
    error.statusCode,
    error.data.error.code,
    APICallError.isInstance(error) && error.isRetryable,
  ]);
}

// Deepgram's package.

function deepgram(url = URL_OF_ALL, apiKey = "none") {
  const socket = url.replace("http", "ws");
  return new DeepgramClient({ apiKey, maxRetries: 0, environment: { base: url, production: socket, agent: socket, agentRest: url } });
}
const deepgramSpeaks = (client, model = "alloy", text = TEXT) =>
  client.speak.v1.audio.generate({ text, model, encoding: "linear16", container: "none" });

async function deepgram_whole() {
  return { bytes: (await (await deepgramSpeaks(deepgram())).arrayBuffer()).byteLength };
}

async function deepgram_streamed() {
  return {
    bytes: await heard((await deepgramSpeaks(deepgram())).stream()),
    begins: await begins((await deepgramSpeaks(deepgram(), "alloy", ENDLESS)).stream()),
  };
}

async function deepgram_refused() {
  const speak = async (url, key, voice) => (await (await deepgramSpeaks(deepgram(url, key), voice)).arrayBuffer()).byteLength;
  return refused(speak, (error) => [error.constructor.name, error.statusCode, error.body.err_code]);
}

const deepgramSocket = (client) =>
  client.speak.v1.connect({ model: "alloy", encoding: "linear16", sample_rate: "24000", reconnectAttempts: 0 });

async function deepgram_socket() {
  const socket = await deepgramSocket(deepgram());
  const said = [];
  let bytes = 0;
  const ended = new Promise((resolve) => socket.on("close", (event) => resolve(event.code)));
  socket.on("message", (message) => {
    if (message instanceof Blob) bytes += message.size;
    else said.push(message.type);
    if (message.type === "Flushed") socket.sendClose({ type: "Close" });
  });
  socket.connect();
  await socket.waitForOpen();
  for (const word of TEXT.split(" ")) socket.sendText({ type: "Speak", text: `${word} ` });
  socket.sendFlush({ type: "Flush" });
  return { code: await ended, bytes, said };
}

async function deepgram_socket_refused() {
  const socket = await deepgramSocket(deepgram(GUARDED, WRONG));
  const failed = new Promise((resolve) => socket.on("error", (error) => resolve(error.message)));
  socket.connect();
  return { error: await failed };
}

// The first lines of each package's own documentation, with nothing changed but the address.

async function first_lines() {
  const eleven = elevenlabs();
  const text = "The first move is what sets everything in motion.";
  const mp3 = { text, modelId: "eleven_multilingual_v2", outputFormat: "mp3_44100_128" };
  const user = await eleven.user.get();
  const page = await eleven.voices.search({ sort: "name", sortDirection: "asc" });
  const models = await deepgram().manage.v1.models.list();
  const greeting = { text: "Hello, world!" };
  const providers = { apiKey: "none", fetch: fetchHere };
  const gpt = createOpenAI({ baseURL: `${URL_OF_ALL}/v1`, apiKey: "none" }).speech("gpt-4o-mini-tts");
  const multilingual = createElevenLabs(providers).speech("eleven_multilingual_v2");
  const generated = [
    await generateSpeech({ model: gpt, ...greeting }),
    await generateSpeech({ model: gpt, ...greeting, voice: "alloy", providerOptions: { openai: { speed: 1.2 } } }),
    await generateSpeech({ model: multilingual, ...greeting }),
    await generateSpeech({
      model: multilingual,
      ...greeting,
      voice: "21m00Tcm4TlvDq8ikWAM",
      providerOptions: { elevenlabs: { voiceSettings: { stability: 0.5, similarityBoost: 0.75 } } },
    }),
    await generateSpeech({ model: createDeepgram(providers).speech("aura-2"), ...greeting, voice: "thalia", language: "en" }),
    await generateSpeech({
      model: createDeepgram(providers).speech("aura-2"),
      ...greeting,
      voice: "helena",
      providerOptions: { deepgram: { encoding: "linear16", sampleRate: 24000 } },
    }),
  ];
  const openaiReply = await openai().audio.speech.create({ model: "gpt-4o-mini-tts", voice: "coral", input: TEXT });
  return {
    eleven: (await heard(await eleven.textToSpeech.convert("JBFqnCBsd6RMkjVDRZzb", mp3))) > 5_000,
    streamed: (await heard(await eleven.textToSpeech.stream("JBFqnCBsd6RMkjVDRZzb", mp3))) > 5_000,
    user: [user.subscription.characterCount, page.voices.length > 0],
    aura: (await (await deepgram().speak.v1.audio.generate({ text, model: "aura-2-thalia-en" })).arrayBuffer()).byteLength > SECOND,
    flux: (await (await deepgram().speak.v2.audio.generate({ text, model: "flux-alexis-en" })).arrayBuffer()).byteLength > SECOND,
    models: models.tts.length > 1,
    generated: generated.map(({ audio, warnings }) => [audio.format, audio.uint8Array.length > 5_000, warnings.length]),
    openai: (await openaiReply.arrayBuffer()).byteLength > 5_000,
  };
}

const SCENARIOS = [
  first_lines,
  openai_whole,
  openai_streamed,
  openai_refused,
  elevenlabs_whole,
  elevenlabs_streamed,
  elevenlabs_refused,
  ai_whole,
  ai_refused,
  deepgram_whole,
  deepgram_streamed,
  deepgram_refused,
  deepgram_socket,
  deepgram_socket_refused,
];

for (const scenario of SCENARIOS) {
  let found;
  try {
    found = await scenario();
  } catch (error) {
    found = { failed: String(error.stack).slice(0, 1500) };
  }
  console.log(JSON.stringify({ scenario: scenario.name, ...found }));
}
process.exit(0);
