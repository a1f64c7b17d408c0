// gRPC for Node.js against a server: unary calls, a stream, compression, a deadline, a cancellation, and errors.
const assert = require("node:assert");
const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");

const [port, file] = process.argv.slice(2);
const message = fs.readFileSync(file).subarray(5); // grpc-js adds the prefix
const SERVICE = "/inference.GRPCInferenceService/";
const bytes = (value) => value;

function client(options = {}) {
  return new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), options);
}

function unary(on, method, request, options = {}) {
  return new Promise((resolve) => {
    const done = (error, response) => resolve(error ? error.code : response);
    const call = on.makeUnaryRequest(SERVICE + method, bytes, bytes, request, new grpc.Metadata(), options, done);
    if (options.cancel) call.cancel();
  });
}

async function main() {
  const plain = client();
  const responses = await Promise.all(Array.from({ length: 5000 }, () => unary(plain, "ModelInfer", message)));
  assert(responses.every((response) => Buffer.isBuffer(response) && response.equals(responses[0])));
  assert(responses[0].includes(message.subarray(-64)));

  const gzip = client({ "grpc.default_compression_algorithm": grpc.compressionAlgorithms.gzip });
  assert((await unary(gzip, "ModelInfer", message)).equals(responses[0]));

  const stream = plain.makeBidiStreamRequest(SERVICE + "ModelStreamInfer", bytes, bytes);
  const received = [];
  await new Promise((resolve, reject) => {
    stream.on("data", (response) => received.push(response) === 1000 && stream.end());
    stream.on("end", resolve);
    stream.on("error", reject);
    for (let number = 0; number < 1000; number++) stream.write(message);
  });
  assert.strictEqual(received.length, 1000);

  const unknown = Buffer.from(message.toString("latin1").replace("identity_fp32", "identity_none"), "latin1");
  assert.strictEqual(await unary(plain, "ModelInfer", unknown), grpc.status.NOT_FOUND);
  assert.strictEqual(await unary(plain, "NoSuchMethod", message), grpc.status.UNIMPLEMENTED);
  assert.strictEqual(await unary(plain, "ModelInfer", message, { cancel: true }), grpc.status.CANCELLED);
  assert.strictEqual(await unary(plain, "ModelInfer", message, { deadline: 1 }), grpc.status.DEADLINE_EXCEEDED);
  assert(Buffer.isBuffer(await unary(plain, "ModelInfer", message)));
  console.log(`grpc-js: 5,000 calls, 1,000 messages on a stream, gzip and errors as expected (Node.js ${process.version})`);
  plain.close();
  gzip.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
