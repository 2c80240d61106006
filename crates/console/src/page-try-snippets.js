// The request of the form as commands and programs: curl, and Python with tritonclient or requests.
//
// A tensor is {name, datatype, shape} and one of: `text`, its JSON; `file`, the name of a file with its little-endian
// bytes; neither if every value is 0. Tensors without a text are sent as bytes after the JSON, as the binary extension
// of the Open Inference Protocol does.

import { bytesPerValue, countOf } from "./page-try-values.js";

const NUMPY = {
  BOOL: "np.bool_", INT8: "np.int8", INT16: "np.int16", INT32: "np.int32", INT64: "np.int64", UINT8: "np.uint8", UINT16: "np.uint16",
  UINT32: "np.uint32", UINT64: "np.uint64", FP16: "np.float16", FP32: "np.float32", FP64: "np.float64", BYTES: "object",
};
const KEY = "MILLPOND_API_KEY";

// NaN and infinite numbers, which the argument `json` of requests refuses.
const isNonFinite = ({ datatype, text }) => datatype !== "BYTES" && /NaN|Infinity/.test(text ?? "");
const isBinary = (tensor) => tensor.text === undefined;
export const byteSize = ({ shape, datatype }) => countOf(shape) * bytesPerValue(datatype);

// Returns the JSON part of a request. The texts of the tensors are put in as they are.
export function requestText(tensors) {
  const parts = tensors.map((tensor) => {
    const head = `{"name": ${JSON.stringify(tensor.name)}, "datatype": "${tensor.datatype}", "shape": [${tensor.shape.join(", ")}], `;
    return head + (isBinary(tensor) ? `"parameters": {"binary_data_size": ${byteSize(tensor)}}}` : `"data": ${oneLine(tensor.text)}}`);
  });
  return `{"inputs": [${parts.join(", ")}]}`;
}

const STRINGS = /"(?:[^"\\]|\\.)*"|\s+/g;
const oneLine = (text) => text.trim().replace(STRINGS, (token) => (token.startsWith('"') ? token : " "));

// Returns the path of inference requests.
export const inferPath = (model, version) => `/v2/models/${encodeURIComponent(model)}${version ? `/versions/${version}` : ""}/infer`;

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const utf8Length = (text) => new TextEncoder().encode(text).length;

// `call` is {origin, model, version, tensors, needsKey} in all functions below.
export function curl({ origin, model, version, tensors, needsKey }) {
  const body = requestText(tensors), binary = tensors.filter(isBinary), url = quoted(origin + inferPath(model, version));
  const key = needsKey ? ` \\\n  -H "Authorization: Bearer $${KEY}"` : "";
  if (binary.length === 0) return `curl -sS ${url}${key} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(body)}\n`;
  const raw = binary.map((tensor) => (tensor.file ? `cat ${quoted(tensor.file)}` : `head -c ${byteSize(tensor)} /dev/zero`));
  return `{ printf '%s' ${quoted(body)}\n  ${raw.join("; ")}; } |\ncurl -sS ${url}${key} \\\n  -H 'Content-Type: application/octet-stream' \\\n` +
    `  -H 'Inference-Header-Content-Length: ${utf8Length(body)}' \\\n  --data-binary @-\n`;
}

const WORDS = { true: "True", false: "False", null: "None", NaN: 'float("nan")', Infinity: 'float("inf")' };

// Converts JSON to an expression of Python. Strings are written again, because Python reads some escapes otherwise.
export function python(text) {
  return text.trim().replace(/"(?:[^"\\]|\\.)*"|\b(?:true|false|null|NaN|Infinity)\b/g, (token) => WORDS[token] ?? JSON.stringify(JSON.parse(token)));
}

// Returns names of variables, unique and valid in Python, for the tensors.
function variables(tensors) {
  const taken = new Set(["np", "triton", "client", "inputs", "result", "output", "requests", "answer", "json", "os", "header", "headers", "url", "print", "list", "len", "str", "float", "object"]);
  const words = /^(False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)$/;
  return tensors.map(({ name }) => {
    let variable = name.replace(/[^A-Za-z0-9_]+/g, "_").replace(/^_+(?=.)/, "");
    if (!/^[A-Za-z_]/.test(variable) || words.test(variable)) variable = `x_${variable}`;
    while (taken.has(variable)) variable += "_";
    taken.add(variable);
    return variable;
  });
}

function array(tensor) {
  // NumPy has no bfloat16; tritonclient converts float32.
  const type = NUMPY[tensor.datatype] ?? "np.float32", shape = `[${tensor.shape.join(", ")}]`;
  if (tensor.file && tensor.datatype === "BF16") {
    return `(np.fromfile(${JSON.stringify(tensor.file)}, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(${shape})`;
  }
  if (tensor.file) return `np.fromfile(${JSON.stringify(tensor.file)}, ${type}).reshape(${shape})`;
  if (isBinary(tensor)) return `np.zeros(${shape}, ${type})`;
  // The shape matters for empty lists.
  const reshape = countOf(tensor.shape) === 0 ? `.reshape(${shape})` : "";
  return `np.array(${python(tensor.text).replaceAll("\n", "\n    ")}, ${type})${reshape}`;
}

export function tritonclient({ origin, model, version, tensors, needsKey }) {
  const names = variables(tensors), address = new URL(origin), isTls = address.protocol.startsWith("https");
  const made = tensors.map((tensor, at) => `${names[at]} = ${array(tensor)}`);
  const inputs = tensors.map((tensor, at) =>
    `    triton.InferInput(${JSON.stringify(tensor.name)}, ${names[at]}.shape, "${tensor.datatype}").set_data_from_numpy(${names[at]}),`);
  const port = address.port || (isTls ? "443" : "80");
  const options = [version && `model_version="${version}"`, needsKey && "headers=headers"].filter(Boolean).map((option) => `, ${option}`).join("");
  return [
    "# pip install 'tritonclient[http]'",
    ...(needsKey ? ["import os", ""] : []),
    "import numpy as np", "import tritonclient.http as triton", "",
    `client = triton.InferenceServerClient("${address.hostname}:${port}"${isTls ? ", ssl=True" : ""})`,
    ...(needsKey ? [`headers = {"Authorization": "Bearer " + os.environ["${KEY}"]}`] : []),
    ...made,
    "inputs = [", ...inputs, "]",
    `result = client.infer(${JSON.stringify(model)}, inputs${options})`,
    'for output in result.get_response()["outputs"]:',
    '    print(output["name"], output["shape"])',
    '    print(result.as_numpy(output["name"]))', "",
  ].join("\n");
}

export function requests({ origin, model, version, tensors, needsKey }) {
  const names = variables(tensors), binary = tensors.filter(isBinary), url = JSON.stringify(origin + inferPath(model, version));
  const key = needsKey ? `"Authorization": "Bearer " + os.environ["${KEY}"]` : "";
  const isDumped = tensors.some(isNonFinite);
  const imports = [(binary.length || isDumped) && "import json", needsKey && "import os"].filter(Boolean);
  const lines = ["# pip install requests" + (binary.length ? " numpy" : ""), ...imports, ...(imports.length ? [""] : []),
    ...(binary.length ? ["import numpy as np"] : []), "import requests", ""];
  for (const tensor of binary) lines.push(`${names[tensors.indexOf(tensor)]} = ${bits(tensor)}`);
  const entries = tensors.map((tensor, at) => {
    const head = `    {"name": ${JSON.stringify(tensor.name)}, "datatype": "${tensor.datatype}", "shape": [${tensor.shape.join(", ")}],`;
    return isBinary(tensor) ? `${head} "parameters": {"binary_data_size": ${names[at]}.nbytes}},`
      : `${head}\n     "data": ${python(tensor.text).replaceAll("\n", "\n     ")}},`;
  });
  lines.push("inputs = [", ...entries, "]", `url = ${url}`);
  if (binary.length === 0 && isDumped) {
    lines.push(`headers = {"Content-Type": "application/json"${key ? `, ${key}` : ""}}`,
      'answer = requests.post(url, data=json.dumps({"inputs": inputs}), headers=headers)');
  } else if (binary.length === 0) lines.push(`answer = requests.post(url, json={"inputs": inputs}${key ? `, headers={${key}}` : ""})`);
  else {
    const raw = binary.map((tensor) => `${names[tensors.indexOf(tensor)]}.tobytes()`);
    lines.push('header = json.dumps({"inputs": inputs}).encode()', `headers = {"Inference-Header-Content-Length": str(len(header))${key ? `, ${key}` : ""}}`,
      `answer = requests.post(url, data=header + ${raw.join(" + ")}, headers=headers)`);
  }
  lines.push("answer.raise_for_status()", 'for output in answer.json()["outputs"]:', '    print(output["name"], output["shape"], output["data"])', "");
  return lines.join("\n");
}

// Returns the array whose bytes are sent: the bits of a bfloat16 as 16-bit integers.
function bits(tensor) {
  return tensor.datatype === "BF16" ? array({ ...tensor, datatype: "UINT16" }) : array(tensor);
}
