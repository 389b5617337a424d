/* The running turns of this page as plain values. Pure: a frame and a turn give a new turn and what changed in it.

   The border: no DOM, no socket, no clock. */

/** A turn that the page knows to run and has heard nothing about yet. */
export function newTurn(message) {
  return { message, seq: -1, stage: "starting", position: 0, done: 0, total: 0, problem: "", blocks: [], thinking: null, isOver: false, status: "", stats: null, error: "" };
}

/**
 * Take in a frame. `verdict` is "applied", "old" (shown before: ignore) or "gap" (something is missing: watch again).
 * `changed` holds the indices of blocks to draw; blocks beyond the new length are to be removed.
 */
export function applyFrame(turn, frame) {
  switch (frame.type) {
    case "turn.snapshot":
      // Also of a turn that is over here: the reply is being continued, under a count that begins anew.
      return replaceAll(turn, frame, { isOver: false, status: "", ...stageOf(frame) });
    case "turn.end":
      return replaceAll(turn, frame, { isOver: true, status: frame.status, stats: frame.stats, error: frame.error });
    case "turn.stage":
    case "turn.delta": {
      if (frame.seq <= turn.seq) return unchanged(turn, "old");
      if (frame.seq !== turn.seq + 1) return unchanged(turn, "gap");
      if (frame.type === "turn.stage") return { turn: { ...turn, seq: frame.seq, ...stageOf(frame) }, changed: [], verdict: "applied" };
      return applyDelta(turn, frame);
    }
    default:
      throw new Error(`not a frame about a turn: ${frame.type}`);
  }
}

function applyDelta(turn, frame) {
  const blocks = turn.blocks.slice(0, frame.num_blocks);
  for (const { index, html, is_done: isDone } of frame.blocks) {
    if (index > blocks.length) return unchanged(turn, "gap");
    blocks[index] = { html, isDone };
  }
  if (blocks.length !== frame.num_blocks) return unchanged(turn, "gap");
  const stage = { stage: "writing", position: 0, done: 0, total: 0, problem: "" };
  return { turn: { ...turn, ...stage, seq: frame.seq, blocks, thinking: thinkingOf(frame) }, changed: frame.blocks.map((block) => block.index), verdict: "applied" };
}

function replaceAll(turn, frame, rest) {
  const blocks = frame.blocks.map(({ html, is_done: isDone }) => ({ html, isDone }));
  const hasMoved = turn.thinking?.numBlocks !== frame.thinking?.num_blocks; // into the answer, or out of it
  const changed = [...blocks.keys()].filter((index) => hasMoved || turn.blocks[index]?.html !== blocks[index].html);
  return { turn: { ...turn, ...rest, seq: frame.seq, blocks, thinking: thinkingOf(frame) }, changed, verdict: "applied" };
}

/** How many blocks at the head are what the model thought, whether it still thinks, and for how long it did. */
function thinkingOf({ thinking }) {
  return thinking === null ? null : { numBlocks: thinking.num_blocks, isRunning: thinking.is_running, ms: thinking.ms };
}

function unchanged(turn, verdict) {
  return { turn, changed: [], verdict };
}

function stageOf({ stage, position, done, total, problem }) {
  return { stage, position, done, total, problem };
}
