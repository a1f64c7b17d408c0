// The scenario in the fragment of the address, which browsers do not send to a server: compressed JSON, or a preset.

const KEY = "s=";

/** @param {CompressionStream | DecompressionStream} stream @param {BufferSource} bytes */
async function through(stream, bytes) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

/** @param {Scenario} scenario */
async function encodeScenario(scenario) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(JSON.stringify(scenario)));
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return `#${KEY}${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

// The scenario of a fragment, the name of a preset, or null if it has neither.
/** @param {string} fragment @returns {Promise<{ preset?: string, scenario?: Scenario } | null>} */
async function decodeFragment(fragment) {
  const text = fragment.replace(/^#/, "");
  const preset = new URLSearchParams(text).get("preset");
  if (preset) return { preset };
  if (!text.startsWith(KEY)) return null;
  const binary = atob(text.slice(KEY.length).replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  const scenario = JSON.parse(new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes)));
  return { scenario };
}

export { decodeFragment, encodeScenario };
