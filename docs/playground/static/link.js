// State in the fragment of the address, which browsers do not send to a server: compressed JSON, or a preset's name.

const KEY = "s=";

/** @param {CompressionStream | DecompressionStream} stream @param {BufferSource} bytes */
async function through(stream, bytes) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

/** @param {object} state @param {string} key */
async function encodeState(state, key) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(JSON.stringify(state)));
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return `#${key}${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

// The state of a fragment, or null if it has none.
/** @param {string} fragment @param {string} key @returns {Promise<any>} */
async function decodeState(fragment, key) {
  const text = fragment.replace(/^#/, "");
  if (!text.startsWith(key)) return null;
  const binary = atob(text.slice(key.length).replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes)));
}

/** @param {Scenario} scenario */
const encodeScenario = (scenario) => encodeState(scenario, KEY);

// The scenario of a fragment, the name of a preset, or null if it has neither.
/** @param {string} fragment @returns {Promise<{ preset?: string, scenario?: Scenario } | null>} */
async function decodeFragment(fragment) {
  const preset = new URLSearchParams(fragment.replace(/^#/, "")).get("preset");
  if (preset) return { preset };
  const scenario = await decodeState(fragment, KEY);
  return scenario && { scenario };
}

export { decodeFragment, decodeState, encodeScenario, encodeState };
