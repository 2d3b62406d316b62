// OpenAI's and Anthropic's own clients for Node; which one is the first word of the action.

const [how, address, model, prompt] = process.argv.slice(2);
const [dialect, action] = how.split(":");
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};
const cityOnly = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const messages = [{ role: "user", content: prompt }];

async function openai() {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none" });
  const ask = (more) => client.chat.completions.create({ model, messages, ...more });
  const actions = {
    async plain() {
      const answer = await ask({});
      return { said: answer.choices[0].message.content, usage: Boolean(answer.usage) };
    },
    async stream() {
      const pieces = [];
      for await (const chunk of await ask({ stream: true })) {
        const text = chunk.choices[0]?.delta?.content;
        if (text) pieces.push(text);
      }
      return { said: pieces.join(""), pieces: pieces.length };
    },
    async tools() {
      const tool = { type: "function", function: { name: "weather", parameters: cityOnly } };
      const [call] = (await ask({ tools: [tool] })).choices[0].message.tool_calls;
      return { call: [call.function.name, JSON.parse(call.function.arguments)] };
    },
    async structured() {
      const json_schema = { name: "weather", schema: parameters };
      const answer = await ask({ response_format: { type: "json_schema", json_schema } });
      return { value: JSON.parse(answer.choices[0].message.content) };
    },
    async leave() {
      for await (const _ of await ask({ stream: true })) break;
      return { pieces: 1 };
    },
  };
  return actions[action]();
}

async function anthropic() {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: `${address}/llm`, apiKey: "none" });
  const ask = (more) => client.messages.create({ model, messages, max_tokens: 256, ...more });
  const text = (answer) => answer.content.map((block) => block.text ?? "").join("");
  const actions = {
    async plain() {
      const answer = await ask({});
      return { said: text(answer), usage: Boolean(answer.usage.output_tokens) };
    },
    async stream() {
      const pieces = [];
      for await (const event of await ask({ stream: true })) {
        if (event.type === "content_block_delta" && event.delta.type === "text_delta") {
          pieces.push(event.delta.text);
        }
      }
      return { said: pieces.join(""), pieces: pieces.length };
    },
    async tools() {
      const answer = await ask({ tools: [{ name: "weather", input_schema: cityOnly }] });
      const call = answer.content.find((block) => block.type === "tool_use");
      return { call: [call.name, call.input] };
    },
    async structured() {
      const format = { type: "json_schema", schema: parameters };
      return { value: JSON.parse(text(await ask({ output_config: { format } }))) };
    },
    async leave() {
      for await (const event of await ask({ stream: true })) {
        if (event.type === "content_block_delta") break;
      }
      return { pieces: 1 };
    },
  };
  return actions[action]();
}

async function aiSdk(provider) {
  const { generateText, streamText, tool, jsonSchema, Output } = await import("ai");
  let chat;
  if (provider === "anthropic") {
    const { createAnthropic } = await import("@ai-sdk/anthropic");
    chat = createAnthropic({ baseURL: `${address}/llm/v1`, apiKey: "none" })(model);
  } else {
    const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
    chat = createOpenAICompatible({
      name: "frontdoor",
      baseURL: `${address}/v1`,
      supportsStructuredOutputs: true,
    })(model);
  }
  const actions = {
    async plain() {
      const answer = await generateText({ model: chat, prompt });
      return { said: answer.text, usage: Boolean(answer.usage) };
    },
    async stream() {
      const pieces = [];
      let failed;
      const answer = streamText({ model: chat, prompt, onError: ({ error }) => (failed = error) });
      for await (const piece of answer.textStream) pieces.push(piece);
      if (failed) throw failed;
      return { said: pieces.join(""), pieces: pieces.length };
    },
    async tools() {
      const weather = tool({ description: "Tell it.", inputSchema: jsonSchema(cityOnly) });
      const answer = await generateText({ model: chat, prompt, tools: { weather } });
      const [call] = answer.toolCalls;
      return { call: [call.toolName, call.input] };
    },
    async structured() {
      const output = Output.object({ schema: jsonSchema(parameters) });
      const answer = await generateText({ model: chat, prompt, output, experimental_output: output });
      return { value: answer.output ?? answer.experimental_output };
    },
    async leave() {
      const leaving = new AbortController();
      const answer = streamText({
        model: chat,
        prompt,
        abortSignal: leaving.signal,
        onError: () => {},
      });
      for await (const piece of answer.textStream) {
        if (piece) break;
      }
      leaving.abort();
      return { pieces: 1 };
    },
  };
  return actions[action]();
}

const dialects = {
  openai,
  anthropic,
  "ai-openai": () => aiSdk("openai"),
  "ai-anthropic": () => aiSdk("anthropic"),
};
let told;
try {
  told = await dialects[dialect]();
} catch (error) {
  const cause = error?.lastError ?? error;
  const status = cause?.status ?? cause?.statusCode ?? null;
  told = { error: `${error?.constructor?.name}: ${error?.message}`.slice(0, 500), status };
}
console.log(JSON.stringify(told));
