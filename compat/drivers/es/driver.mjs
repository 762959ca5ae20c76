// protobuf-es under Node, behind the suite's line protocol (see compat/protocol.py).

import { readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { fromBinary, toBinary, toJsonString, createRegistry } from "@bufbuild/protobuf";

const VERSION = "qim-compat/1";
const root = fileURLToPath(new URL("./gen/", import.meta.url));

async function registry() {
  const names = readdirSync(root, { recursive: true }).filter((name) => name.endsWith("_pb.js"));
  const modules = await Promise.all(names.sort().map((name) => import(join(root, name))));
  const files = modules.flatMap((module) =>
    Object.values(module).filter((value) => value?.kind === "file"),
  );
  return createRegistry(...files);
}

function answer(types, operation, messageName, data) {
  const type = types.getMessage(messageName);
  if (!type || !["reencode", "decode"].includes(operation)) return "unsupported";
  try {
    const message = fromBinary(type, data);
    const out =
      operation === "reencode"
        ? Buffer.from(toBinary(type, message))
        : Buffer.from(toJsonString(type, message, { registry: types }));
    return `ok ${out.length ? out.toString("base64") : "-"}`;
  } catch (error) {
    return `refused malformed ${String(error.message).replace(/[^\x20-\x7e]+/g, " ")}`;
  }
}

const types = await registry();
for await (const line of createInterface({ input: process.stdin })) {
  const [first, operation, messageName, data] = line.split(" ");
  if (first === "hello") {
    console.log(`hello ${VERSION} wire protobuf-es`);
    continue;
  }
  const bytes = data === "-" ? new Uint8Array() : Buffer.from(data, "base64");
  console.log(`${first} ${answer(types, operation, messageName, bytes)}`);
}
