// The types that several modules of the widgets and of the playground share, for their JSDoc comments: tsc reads them,
// browsers do not. The kernel's side of a message is named beside each.

// --- widgets ----------------------------------------------------------------------------------

/** A widget's model as anywidget gives it to `render`, or `LocalModel`; `State` has its traits. */
interface WidgetModel<State> {
  get<Name extends keyof State>(name: Name): State[Name];
  set<Name extends keyof State>(name: Name, value: State[Name]): void;
  save_changes(): void;
  send(message: object): void;
  on(event: string, listener: Listener): void;
  off(event: string, listener: Listener): void;
}
type Listener = (message?: any) => void;
interface WidgetContext<State> { model: WidgetModel<State>; el: HTMLElement; host?: WidgetHost }
/** What anywidget gives a widget to show others; a reference is `anywidget:` and the id of a model. */
interface WidgetHost {
  getModel(reference: string): Promise<WidgetModel<any>>;
  getWidget(reference: string): Promise<{ render(view: { el: HTMLElement; signal: AbortSignal }): Promise<void> }>;
}
interface GroupState { children: string[]; titles: string[]; css_class: string; shared: string }
interface GroupChild { node: HTMLElement; controller: AbortController; model: WidgetModel<any> | null }

/** The pages have elements of HTML and of SVG only. */
interface Element extends HTMLOrSVGElement {}

type Child = Node | string;
/** The properties of an element that `make` creates: the DOM's, numbers as text, and attributes by their kind. */
type Properties<Tag extends keyof HTMLElementTagNameMap> = {
  [Name in keyof HTMLElementTagNameMap[Tag]]?:
    HTMLElementTagNameMap[Tag][Name] extends string ? string | number : HTMLElementTagNameMap[Tag][Name];
} & { class?: string; data?: Record<string, unknown>; aria?: Record<string, string>; role?: string };

// --- batch view: what the kernel sends (tritonnb/notebook/view_encoding.py, view_session.py) ---------------

/** A list of values, named by a list of fields in `Encoding`. */
type Encoded = any[];
interface Encoding {
  ticks: number;
  times: string[];
  member: string[];
  refusal: string[];
  occupancy: string[];
  generation: string[];
  sequence_start: number;
  sequence_end: number;
  step: number;
}
type Themes = Record<"light" | "dark", Palette>;
/** The colours by meaning (tritonnb/lab/figures/palette.py). */
interface Palette {
  compute: string; input: string; output: string; queue: string; limit: string; refusal: string; null: string;
  selection: string; priorities: string[]; series: string[];
}
/** With the colours and the font of the page. */
interface Theme extends Palette { ink: string; faint: string; paper: string; panel: string; line: string; font: string }
interface Meta {
  model: string;
  encoding: Encoding;
  themes: Themes;
  marks: Record<string, [mark: string, words: string]>; // of each rule that sends batches
  max_batch_size: number;
  preferred: number[];
  delay: number;
  priorities: number;
  batcher: "sequence" | "dynamic" | "none";
  simulated?: boolean;
  note?: string;
  strategy?: "direct" | "oldest";
  iterative?: boolean;
  slots?: number;
  idle?: number;
  states?: string[];
}
interface Counts {
  requests: number; refused: number; failed: number; batches: number; rows: number; nulls: number; cached?: number;
}
interface RecentNumbers {
  rate: number; errors: number; p50_ms: number | null; p99_ms: number | null; busy: number | null; problem: string;
}
interface SlotState {
  owners?: [sequence: number | string, instance: string, slot: number, left: number][];
  backlog?: (number | string)[];
  omitted?: number;
}
/** The counters of one lane, slot or queue in intervals: `at` has their indices, the other columns the values. */
type CounterColumns = Record<string, number[]>;
interface CounterGroups<Columns> { queue: Columns; lanes: Record<string, Columns>; slots: Record<string, Columns> }
/** What the batches of a history and of a delivery have in common; times are in ticks. */
interface Packed {
  number: number;
  now: number;
  interval: number;
  instances: string[];
  pending: Encoded[];
  running: [instance: string, sent: number, rows: number][];
  depth: number;
  counts: Counts;
  batches: Record<string, any[]>;
  done: Record<string, any[]>;
  refused: Encoded[];
  depths: [time: number, depth: number][];
  responses: [batch: number, place: number, time: number][];
  occupancy: Encoded[];
  meta?: Meta;
  recent?: RecentNumbers;
  slot_state?: SlotState;
  reset?: boolean;
  // a delivery
  since?: number;
  exact?: number;
  counters?: CounterGroups<CounterColumns>;
  // a history
  spans?: Span[];
  levels?: CounterGroups<CounterColumns[]>;
  kept?: number;
}

// --- batch view: what is known (static/batch_view/encoding.js decodes it); times are in ms ---------------------

type Span = [from: number, to: number];
interface Member {
  label: string; rows: number; priority: number; queued: number; queue_row: number; sequence: number | string;
  flags: number;
}
interface Generation { tokens: number; first: number; last: number }
interface Execution {
  n: number;
  start: number | null;
  input?: number | null;
  output?: number | null;
  end: number | null;
  failed: number;
  generated?: (Generation | null)[] | null;
}
/** A null member is a null request; `differs`: the batch is not one of the other run. */
interface Batch extends Execution {
  instance: string;
  sent: number;
  rows: number;
  requests: number;
  depth: number;
  oldest: number;
  limited: number | null; // since when the rate limiter made it wait
  rule: string;
  why: string;
  members: (Member | null)[];
  slots: number[] | null;
  lost?: boolean; // its end was not received
  responses?: [place: number, time: number][]; // after the execution, by the place of the request in the batch
  last?: number; // the time of the last of them
  differs?: boolean;
}
interface Refusal {
  queued: number; refused: number; label: string; queue_row: number; message: string; sequence: number | string;
}
interface Occupancy {
  sequence: number | string; instance: string; slot: number; arrived: number; assigned: number;
  released: number | null; ended_by: string; executed: number; last: number;
}
interface Wait { sequence: number | string; arrived: number; assigned: number }
interface Running { instance: string; sent: number; rows: number }
interface Delivery extends Omit<Packed, "pending" | "running" | "batches" | "done" | "refused" | "occupancy"> {
  pending: Member[];
  running: Running[];
  batches: Batch[];
  done: Execution[];
  refused: Refusal[];
  occupancy: Occupancy[];
}
interface TimelineEvent { time: number; text: string; batch: number | null }
interface SlowRequest { latency: number; batch: number; label: string }
/** How the values of an interval become those of a longer one. */
type Merges = Record<string, (one: number, other: number) => number>;
/** Of an interval, times in ns. A lane has busy, batches, rows, largest; a slot busy, nulls; the queue the others. */
interface CounterValues {
  busy?: number; batches?: number; rows?: number; largest?: number; nulls?: number;
  depth?: number; waited?: number; refused?: number; wait?: number;
}

type Timeline = import("../../tritonnb/notebook/static/batch_view/timeline.js").Timeline;
type Series = import("../../tritonnb/notebook/static/batch_view/counters.js").Series;

// --- batch view: what is drawn ----------------------------------------------------------------

/** What is replayed, and since when. */
interface Replay { from: number; to: number; startedAt: number; whole: Timeline }
/** The last batches, which are shown until the next ones: how many, and how long nothing happened before them. */
interface Held { from: number; span: number; batches: number; silence: number; isCut: boolean }
type Point = [x: number, y: number];
type Line = [x1: number, y1: number, x2: number, y2: number];
interface Style { stroke?: string; fill?: string; line?: number; dash?: number[]; alpha?: number; hatch?: boolean }
interface TextStyle {
  size?: number; align?: "left" | "center" | "right"; fill?: string; halo?: boolean; bold?: boolean;
}
type Surface = import("../../tritonnb/notebook/static/batch_view/surface.js").CanvasSurface |
  import("../../tritonnb/notebook/static/batch_view/surface.js").SvgSurface;
type Scale = import("../../tritonnb/notebook/static/batch_view/layout.js").Scale;
type Layout = ReturnType<typeof import("../../tritonnb/notebook/static/batch_view/layout.js").layoutOf>;
type Ghost = import("../../tritonnb/notebook/static/batch_view/ghosts.js").Ghost;
type TimeWindow = import("../../tritonnb/notebook/static/batch_view/window.js").TimeWindow;
type View = import("../../tritonnb/notebook/static/batch_view/view.js").View;

/** The level of the counters of which columns are drawn, the length of its intervals, and from when it is known. */
interface Columns { level: number; width: number; begin: number }
/** The times of one column, and where it is. */
type VisibleInterval = [left: number, right: number, begin: number, end: number, index: number];
type Interval = [begin: number, end: number, index: number];
/** What is drawn: the time, batches or columns, and what is selected. */
interface Shown {
  from: number;
  span: number;
  end: number;
  batches: boolean;
  rows: number | null;
  cursor?: number | null;
  selected?: number | null;
  range?: Span | null;
  focus?: Member | null;
  live?: boolean;
  ghost?: Ghost;
}
interface Frame extends Omit<Shown, "batches"> {
  batches: Batch[];
  surface: Surface;
  timeline: Timeline;
  scale: Scale;
  layout: Layout;
  targets: Target[];
  focusLines: [Point[], Style][];
  columns: Columns | null;
  leastWidth: number;
  maxDepth: number;
  maxWait: number;
  linksWaits: boolean;
  queueStep: number; queueRow: (row: number) => number;
}
interface PointerPlace { x: number; y: number }
interface PointerActions {
  drag: (distance: number, isFirst: boolean) => void;
  range: (from: number, to: number) => void;
  click: (point: PointerPlace) => void;
  point: (point: PointerPlace | null) => void;
}
interface Area { x: number; y: number; width: number; height: number }
/** What can be pointed at, by its kind. */
interface Targets {
  depth: object;
  column: { instance?: string; slot?: string };
  batch: { batch: Batch };
  budget: { batch: Batch };
  limited: { batch: Batch };
  request: { request: Member; batch: Batch | null; slot?: number };
  null: { batch: Batch; slot: number };
  idle: { batch: Batch; request: Member; generation: Generation };
  refusal: { refusal: Refusal };
  occupancy: { held: Occupancy };
}
type TargetOf<Kind extends keyof Targets> = Kind extends unknown ? Area & { kind: Kind } & Targets[Kind] : never;
type Target = TargetOf<keyof Targets>;
/** The name of a sequence, and the band in which it may be. */
interface Name { text: string; left: number; right: number; y: number }
/** A batch's box, and the row of one of its requests. */
interface Box { left: number; width: number; bottom: number; height: number }
/** A request of a batch, or several requests of one colour. */
type Slice = [member: Member | null, height: number, colour: string | null, label: string];
interface Row { left: number; width: number; y: number; part: number }

/** The texts of the steps of the selected request by model. */
interface LitSteps { steps?: Record<string, string>; own?: boolean }
interface Moment { from?: number; span?: number; cursor?: number | null; columns?: boolean; own?: boolean }
interface Blame {
  batch?: number;
  request?: string;
  title?: string;
  error?: string;
  parts?: [cause: string, ms: number, share: number, meaning: string, remedy: string | null][];
}
interface GhostBoxes { text?: string; boxes?: [instance: string, begin: number, end: number, rows: number][] }
interface BatchViewState {
  history: Packed; live: boolean; moment: Moment; blame: Blame; ghost: GhostBoxes; notice: string;
}

// --- configuration editor (tritonnb/notebook/config_editor.py, config_report.py) -----------------------------

interface SchemaField { type: string; help: string; values?: string[]; message?: string }
/** The fields of each message by its name. */
type Schema = Record<string, Record<string, SchemaField>>;
interface Problem { message: string; line: number; column: number; fix: { label: string; text: string } | null }
interface FormField {
  path: string; label: string; kind: "bool" | "int" | "ints" | "float" | "choice"; value: any; unit: string;
  hint: string; help: string; choices?: [value: string, text: string][];
}
interface FormSection { title: string; fields: FormField[]; folded: boolean }
interface ConfigReport {
  text: string; problems: Problem[]; form: FormSection[] | null; effect?: Effect; diff?: string[];
}
type Effect = "in place" | "reloaded" | "loaded" | "unchanged" | "";
interface CodeState { model: string; text: string; report: ConfigReport; schema: Schema }
interface ConfigEditorState extends CodeState {
  status: {
    busy: string; outcome: string; level: string; outside: boolean; loaded: boolean; ended: boolean; file: string;
  };
  preview: { text?: string };
}
/** A field of the form; a choice is a `select`, which has no `checked`, `min`, `step` and `placeholder`. */
type FormControl = HTMLInputElement;
interface Proposal { label: string; type: string; help: string; insert: string; back: number; values?: string[] }
interface Scope { message: string | undefined; field: string | null; set: Set<string> }
interface Caret { text: string; caret: number }
type Code = ReturnType<typeof import("../../tritonnb/notebook/static/config_editor/code.js").createCode>;

// --- dashboard (tritonnb/notebook/dashboard.py, server_monitor.py) -----------------------------------------

interface ListedModel {
  name: string; state: string; reason: string; scheduling: string; rate: number; errors: number; problem: string;
  curve: number[];
}
interface ModelListState { models: ListedModel[]; selected: string; shown: string; ended: boolean }
interface Tile { label: string; value: string; unit: string; note: string; level: string }
interface TilesState { tiles: Tile[]; kept: Tile[] }
type Measure = "rate" | "errors" | "p50_ms" | "p99_ms" | "busy" | "n";
/** A list of values for each measure, null where there is none; empty before the first second. */
type ChartSeries = { time: number[] } & Record<Measure, (number | null)[]>;
type Measures = Partial<Record<Measure, number | null>>;
interface Period extends Measures { time: number; text: string; number?: number }
interface ChartsState { series: ChartSeries; recent: Measures; kept: Measures; periods: Period[] }
interface Chart {
  title: string;
  curves: [name: Measure, style: string, label: string][];
  range: (series: ChartSeries) => [low: number, high: number];
  isLog?: boolean; ofInstances?: boolean;
  scale?: number;
}
/** `shares`: of waiting and of executing, relative to the slowest step. */
interface GraphNode {
  label: string; step: number; layer: number; place: number; texts: string[]; shares: [queue: number, compute: number];
}
interface GraphEdge { source: number; target: number; label: string }
interface Graph {
  nodes: GraphNode[]; edges: GraphEdge[]; layers: number; places: number; description: string;
  total?: string; problem?: string;
}
/** One time axis in ms for all steps of an ensemble (tritonnb/notebook/step_batches.py). */
interface StepsPicture { span: number; lanes: string[]; batches: StepBatch[]; requests: PipelineShape[] }
interface StepBatch { lane: number; model: string; begin: number; end: number; rows: number; requests: number[] }
interface PipelineShape { label: string; begin: number; end: number; failed: string; steps: PipelineStep[] }
interface PipelineStep { model: string; name: string; text: string; begin: number; start: number; batch: number }
interface GraphArrow { path: string; x: number; y: number; anchor: string }

// --- traffic (tritonnb/notebook/traffic.py) -------------------------------------------------------------

interface TrafficSettings {
  loop: string; arrivals: string; rate: number; burst: number; clients: number; rows: number; sequence_length: number;
  http: boolean; shapes: Record<string, string>; revision: number;
}
/** The settings that are entered as numbers. */
type NumberSetting = "rate" | "burst" | "clients" | "rows" | "sequence_length";
type ChangeNumber = (name: NumberSetting, control: HTMLInputElement) => void;
interface VariableInput { name: string; dims: number[] }
interface Latencies { n: number; p50_ms?: number; p99_ms?: number; edges_ms?: number[]; counts?: number[] }
interface TrafficStatus {
  outcome: string; revision: number; level?: string; sent?: number; in_flight?: number; failed?: number; rate?: number;
  latency?: Latencies | null;
}
interface TrafficState {
  model: string;
  settings: TrafficSettings;
  sending: boolean;
  limits: { sequences: boolean; max_rows: number; variable_inputs: VariableInput[]; remote: boolean };
  status: TrafficStatus;
}

// --- debugger and worksheet (tritonnb/notebook/debugger_view.py, worksheet_view.py) -----------------------

interface DebuggerState {
  state: {
    position: number; total: number; description: string; idle: boolean; message: string; error: boolean;
    quantities: [name: string, value: number | null, meaning: string][];
    rules: [rule: string, meaning: string, numbers: string, applies: boolean][];
  };
  breakpoints: string[];
}
type SheetRequest = [name: string, ms: number, detail: string];
interface SheetBatch { names: string[]; instance: string; begin_ms: number; end_ms: number; why: string }
interface SheetResult { batches?: SheetBatch[]; next_ms?: number | null; text?: string; done?: boolean }
interface WorksheetState {
  sheet: { question: string; config: string; requests: SheetRequest[]; end_ms: number };
  answer: string[][];
  result: SheetResult;
}

// --- playground (docs/playground/scenario.py, result.py) --------------------------------------------------

interface ArrivalRequest {
  ms: number; rows?: number; priority?: number; timeout_us?: number; sequence?: number | string; start?: boolean;
  end?: boolean; steps?: number; cancel_ms?: number;
}
type ArrivalKind = "list" | "constant" | "poisson" | "bursts" | "closed";
/** The kind `list` has requests, the others have parameters. */
type Arrivals =
  { kind: "list"; requests: ArrivalRequest[] } | ({ kind: Exclude<ArrivalKind, "list"> } & Record<string, any>);
type ServiceKind = Service["kind"];
type Service = { kind: "fixed"; ms: number } | { kind: "linear"; per_row_ms: number; base_ms: number } | ServiceTable;
interface ServiceTable { kind: "table"; ms: Record<string, number> }
interface Scenario { config: string; arrivals: Arrivals; service: Service; baseline?: string }
interface Preset { title: string; about: string; group: string; scenario: Scenario }
type SizeRow = [size: number, count: number, queue: number, compute: number];
interface LatencyCurve { curve: [ms: number, share: number][]; p50: number; p99: number; count: number }
interface FigureData { latencies: LatencyCurve; sizes: SizeRow[]; statistics: object }
interface ShownResult {
  history: Packed;
  ghost: GhostBoxes;
  verdict: string;
  remarks: string[];
  diagnoses: string[];
  summary: string[][];
  comparison: { verdict: string; difference: string; rows: string[][] } | null;
  batches: [
    number: number, sent: number, instance: string, size: number, members: (number | null)[],
    slots: number[] | null, ms: number, why: string,
  ][];
  controls: [number: number, instance: string, tensors: Record<string, number[]>][];
  figures: FigureData;
  arrivals: ArrivalRequest[];
}
interface SimulationResult { report?: ConfigReport; shown?: ShownResult; error?: string }
/** The elements of the page (docs/playground/static/index.html) that are more than an HTMLElement. */
interface PageParts {
  preset: HTMLSelectElement; swap: HTMLButtonElement; file: HTMLInputElement; full: HTMLAnchorElement;
  copied: HTMLTextAreaElement;
}
/** The elements of docs/playground/static/explain.html that are more than an HTMLElement. */
interface ExplainParts {
  pasted: HTMLTextAreaElement; add: HTMLButtonElement; files: HTMLInputElement; seconds: HTMLInputElement;
  copied: HTMLTextAreaElement;
}
interface ExplainState { sources: { name: string; text: string }[]; seconds: number | null }
interface ArrivalColumn {
  name: keyof ArrivalRequest; label: string; type: string; step?: number | string; min?: number; for?: RegExp | null;
}
interface EditorOptions {
  schema: Schema; text: string; onText: (text: string) => void; setField: (path: string, value: unknown) => void;
}
type Sheet = WorksheetState["sheet"];
type GradeAnswer = (action: string, answer: string[][]) => Promise<SheetResult>;
interface QuizQuestions { newSheet: (settings: object) => Promise<Sheet>; gradeAnswer: GradeAnswer }
