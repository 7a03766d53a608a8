// A layered layout: columns from left to right, few crossings, long edges around the nodes. For some hundred nodes.

export const WIDTH = 176;
export const HEIGHT = 56;
const GAP_X = 96;
const GAP_Y = 20;
const [BAND, BAND_LINE] = [20, 14]; // above the nodes: the titles of stages
const MARGIN = 14;
const SWEEPS = 6;

// `height` of a node is what its texts need; `titleOf` gives the lines of a stage's title in a width.
export function layOut(nodes, edges, titleOf) {
  const all = new Map(nodes.map((node) => [node.id, { id: node.id, stage: node.stage ?? null, out: [], in: [], column: 0, y: 0, height: node.height }]));
  const known = edges.map((edge, index) => ({ ...edge, index })).filter((edge) => all.has(edge.source) && all.has(edge.target));
  const back = backEdges(all, known);
  const forward = known.filter((edge) => !back.has(edge.index) && edge.source !== edge.target);
  for (const edge of forward) {
    all.get(edge.source).out.push(edge.target);
    all.get(edge.target).in.push(edge.source);
  }
  setColumns(all);
  const { columns, chains } = withDummies(all, forward);
  order(columns);
  place(columns);
  return finished(all, columns, known, chains, titleOf);
}

function backEdges(all, edges) {
  const out = new Map([...all.keys()].map((id) => [id, []]));
  edges.forEach((edge) => out.get(edge.source).push(edge));
  const state = new Map();
  const back = new Set();
  for (const root of all.keys()) {
    if (state.has(root)) continue;
    const stack = [[root, 0]];
    state.set(root, 1);
    while (stack.length) {
      const top = stack.at(-1);
      const edge = out.get(top[0])[top[1]++];
      if (!edge) {
        state.set(top[0], 2);
        stack.pop();
      } else if (state.get(edge.target) === 1) back.add(edge.index);
      else if (!state.has(edge.target)) {
        state.set(edge.target, 1);
        stack.push([edge.target, 0]);
      }
    }
  }
  return back;
}

// The longest way from a source; a stage begins behind all of the stage before it.
function setColumns(all) {
  const open = new Map([...all.values()].map((node) => [node.id, node.in.length]));
  const ready = [...all.values()].filter((node) => !node.in.length);
  const sorted = [];
  while (ready.length) {
    const node = ready.shift();
    sorted.push(node);
    for (const id of node.out) {
      open.set(id, open.get(id) - 1);
      if (!open.get(id)) ready.push(all.get(id));
    }
  }
  const stages = [...new Set(sorted.map((node) => node.stage).filter((stage) => stage !== null))].sort((a, b) => a - b);
  const set = (wanted, first) => sorted.filter(wanted).forEach((node) => {
    node.column = Math.max(first, ...node.in.map((id) => all.get(id).column + 1));
  });
  let first = 0;
  for (const stage of stages) {
    set((node) => node.stage === stage, first);
    first = Math.max(...sorted.filter((node) => node.stage === stage).map((node) => node.column)) + 1;
  }
  for (const node of sorted) if (node.stage === null) node.column = Math.max(0, ...node.in.map((id) => all.get(id).column + 1));
  if (!stages.length) set(() => true, 0);
  for (const node of [...sorted].reverse()) // what nothing feeds goes next to what it feeds
    if (!node.in.length && node.out.length && (node.stage === null || !stages.length)) node.column = Math.max(0, Math.min(...node.out.map((id) => all.get(id).column)) - 1);
}

function withDummies(all, edges) {
  const columns = [];
  const put = (node) => (columns[node.column] ??= []).push(node);
  all.forEach((node) => {
    node.before = [];
    node.after = [];
    put(node);
  });
  const chains = new Map();
  for (const edge of edges) {
    const chain = [all.get(edge.source)];
    const target = all.get(edge.target);
    for (let column = chain[0].column + 1; column < target.column; column += 1) {
      const dummy = { column, y: 0, height: 10, before: [], after: [] };
      put(dummy);
      chain.push(dummy);
    }
    chain.push(target);
    for (let index = 1; index < chain.length; index += 1) {
      chain[index - 1].after.push(chain[index]);
      chain[index].before.push(chain[index - 1]);
    }
    chains.set(edge.index, chain);
  }
  return { columns: Array.from(columns, (column) => column ?? []), chains };
}

function order(columns) {
  const number = (column) => column.forEach((node, at) => { node.at = at; });
  columns.forEach(number);
  const by = (side) => (column) => {
    column.forEach((node) => {
      const near = node[side];
      node.rank = near.length ? near.reduce((sum, each) => sum + each.at, 0) / near.length : node.at;
    });
    column.sort((a, b) => a.rank - b.rank || a.at - b.at);
    number(column);
  };
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    if (sweep % 2) [...columns].reverse().forEach(by("after"));
    else columns.forEach(by("before"));
  }
}

function place(columns) {
  for (const column of columns) {
    let y = 0;
    for (const node of column) {
      node.y = y;
      y += node.height + GAP_Y;
    }
  }
  const centre = (node) => node.y + node.height / 2;
  const move = (column, sides) => {
    const wish = column.map((node) => {
      const near = sides.flatMap((side) => node[side]);
      return near.length ? near.reduce((sum, each) => sum + centre(each), 0) / near.length - node.height / 2 : node.y;
    });
    const down = [];
    const up = [];
    column.forEach((node, at) => { down[at] = at ? Math.max(wish[at], down[at - 1] + column[at - 1].height + GAP_Y) : wish[at]; });
    for (let at = column.length - 1; at >= 0; at -= 1) up[at] = at < column.length - 1 ? Math.min(wish[at], up[at + 1] - column[at].height - GAP_Y) : wish[at];
    column.forEach((node, at) => { node.y = (down[at] + up[at]) / 2; });
  };
  for (let round = 0; round < SWEEPS; round += 1) {
    columns.forEach((column) => move(column, ["before"]));
    [...columns].reverse().forEach((column) => move(column, ["after"]));
  }
  columns.forEach((column) => move(column, ["before", "after"]));
}

function finished(all, columns, edges, chains, titleOf) {
  const top = Math.min(0, ...columns.flat().map((node) => node.y));
  const bands = bandsOf(all, titleOf);
  const band = bands.length ? BAND + BAND_LINE * Math.max(...bands.map((each) => each.lines.length)) : 0;
  const at = (node) => ({ x: MARGIN + node.column * (WIDTH + GAP_X), y: MARGIN + band + node.y - top, height: node.height });
  const places = new Map([...all].map(([id, node]) => [id, at(node)]));
  const lines = edges.map((edge) => (chains.has(edge.index) ? line(chains.get(edge.index), at, all.get(edge.source).out.length > 1) : loop(places.get(edge.source), places.get(edge.target))));
  const bottom = Math.max(HEIGHT, ...columns.flat().map((node) => at(node).y + node.height));
  const size = { width: 2 * MARGIN + columns.length * (WIDTH + GAP_X) - GAP_X, height: bottom + MARGIN };
  return { places, edges, lines, size, bands };
}

// The label is where edges are apart: at the target if the source has several.
function line(chain, at, fans) {
  const points = chain.map((node) => ({ ...at(node), dummy: !node.id, middle: at(node).y + node.height / 2 }));
  const [first] = points;
  let path = `M${first.x + WIDTH},${round(first.middle)}`;
  let [x, y] = [first.x + WIDTH, first.middle];
  for (const point of points.slice(1)) {
    const reach = (point.x - x) / 2;
    path += `C${round(x + reach)},${round(y)} ${round(point.x - reach)},${round(point.middle)} ${point.x},${round(point.middle)}`;
    [x, y] = [point.x, point.middle];
    if (point.dummy) {
      x += WIDTH;
      path += `H${x}`;
    }
  }
  const last = points.at(-1);
  return { path, label: fans ? { x: last.x - 11, y: last.middle, anchor: "end" } : { x: first.x + WIDTH + 6, y: first.middle, anchor: "start" } };
}

// An edge that leads back: below both of its nodes.
function loop(from, to) {
  const y = Math.max(from.y + from.height, to.y + to.height);
  const path = `M${from.x + WIDTH},${from.y + from.height / 2}C${from.x + WIDTH + 50},${y + 40} ${to.x - 50},${y + 40} ${to.x},${to.y + to.height / 2}`;
  return { path, label: { x: (from.x + WIDTH + to.x) / 2, y: y + 22, anchor: "middle" } };
}

function bandsOf(all, titleOf) {
  const found = new Map();
  all.forEach((node) => {
    if (node.stage === null) return;
    const span = found.get(node.stage) ?? [node.column, node.column];
    found.set(node.stage, [Math.min(span[0], node.column), Math.max(span[1], node.column)]);
  });
  return [...found].map(([stage, [first, last]]) => {
    const width = (last - first) * (WIDTH + GAP_X) + WIDTH + 20;
    return { stage, x: first * (WIDTH + GAP_X) + MARGIN - 10, width, lines: titleOf(stage, width - 24) };
  });
}

const round = (value) => Math.round(value * 10) / 10;
