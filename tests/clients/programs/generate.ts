// Streams a generation, learns from a refusal, and leaves another generation in the middle.
// Prints one JSON object for the test that runs it.  Argument: HOST:PORT.
import { credentials, Metadata, ServiceError, status } from "@grpc/grpc-js";

import {
  FinishReason,
  GenerateRequest,
  GenerateResponse,
  InferenceServiceClient,
} from "./protos/radixd/v1/inference";

const client = new InferenceServiceClient(process.argv[2], credentials.createInsecure());

async function generate(request: GenerateRequest): Promise<GenerateResponse[]> {
  const messages: GenerateResponse[] = [];
  for await (const message of client.generate(request)) messages.push(message);
  return messages;
}

async function refusal(request: GenerateRequest): Promise<ServiceError> {
  try {
    await generate(request);
  } catch (error) {
    return error as ServiceError;
  }
  throw new Error("the request was taken");
}

// Resolves with the status once a stream that was left after one message has ended.
function leave(request: GenerateRequest): Promise<number> {
  return new Promise((resolve, reject) => {
    const call = client.generate(request);
    call.on("data", () => call.cancel());
    call.on("error", (error: ServiceError) => resolve(error.code));
    call.on("end", () => reject(new Error("the stream came to its end")));
  });
}

function detailsOf(metadata: Metadata): string {
  const [details] = metadata.get("grpc-status-details-bin");
  return Buffer.from(details).toString("latin1");
}

async function main(): Promise<void> {
  const sampling = { maxTokens: 8, ignoreEos: true };
  const messages = await generate(GenerateRequest.fromPartial({ text: "héllo", sampling }));
  const last = messages[messages.length - 1];
  const chat = { messages: [{ role: 2, content: "hi" }] };
  const spoken = await generate(GenerateRequest.fromPartial({ chat, sampling, n: 2 }));
  const wrong = { maxTokens: 8, topK: -1 };
  const error = await refusal(GenerateRequest.fromPartial({ text: "hi", sampling: wrong }));
  const long = { maxTokens: 1500, ignoreEos: true };
  const left = await leave(GenerateRequest.fromPartial({ text: "hi", sampling: long }));
  console.log(
    JSON.stringify({
      text: messages.map((message) => message.text).join(""),
      tokenIds: messages.flatMap((message) => message.tokenIds),
      finishReason: FinishReason[last.finishReason],
      usage: last.usage,
      choices: [...new Set(spoken.map((message) => message.choice))].sort(),
      code: status[error.code],
      message: error.details,
      details: detailsOf(error.metadata),
      left: status[left],
    }),
  );
  client.close();
}

main().catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
