"use strict";
// Sums of the page's table of coefficients (membudget.report.explore.document), on exact integers (BigInt).
// Sizes, coefficients and the first verdicts come from Python; here are only sums, minima, maxima and searches.
const Ledger = (() => {
  const big = BigInt;
  const most = (a, b) => (a > b ? a : b);
  const least = (a, b) => (a < b ? a : b);
  const SHARE = "gpu_memory_utilization";
  const sum = (values) => values.reduce((total, value) => total + value, 0n);

  // --- numbers as Python prints them -------------------------------------------------
  const BINARY = [["TiB", 2n ** 40n], ["GiB", 2n ** 30n], ["MiB", 2n ** 20n], ["KiB", 2n ** 10n]];
  const DECIMAL = [["TB", 10n ** 12n], ["GB", 10n ** 9n], ["MB", 10n ** 6n], ["kB", 10n ** 3n]];
  const group = (number) => big(number).toLocaleString("en-US");

  /** number / scale with two digits, halves to even, as Python rounds them. */
  function fixed(number, scale, digits = 2) {
    const sign = number < 0n ? "-" : "";
    const power = 10n ** big(digits);
    const scaled = (number < 0n ? -number : number) * power;
    let whole = scaled / scale;
    const twice = 2n * (scaled % scale);
    if (twice > scale || (twice === scale && whole % 2n === 1n)) whole += 1n;
    const tail = digits ? "." + String(whole % power).padStart(digits, "0") : "";
    return sign + group(whole / power) + tail;
  }

  function scaled(number, units) {
    const size = number < 0n ? -number : number;
    for (const [unit, scale] of units) if (size >= scale) return `${fixed(number, scale)} ${unit}`;
    return `${group(number)} B`;
  }
  const short = (number) => scaled(number, BINARY);
  const decimal = (number) => scaled(number, DECIMAL);
  const users = (number) => `${group(number)} user${big(number) === 1n ? "" : "s"}`;

  // --- one plan ----------------------------------------------------------------------
  // plan: {page, model, format, kv, ctx, users, machine, convention, engine, attention, logits, batched, share}

  const cacheOf = (plan) => plan.model.caches[plan.kv].by[plan.engine];

  /** Bytes of one user's `tokens` tokens: each term is [bytes, window or 0, tokens an entry], see `explore._terms`. */
  function request(plan, tokens) {
    const { fixed, terms } = cacheOf(plan);
    return terms.reduce((all, [size, window, rate]) => {
      const kept = window ? least(tokens, big(window)) : tokens;
      return all + big(size) * (kept / big(rate));
    }, big(fixed));
  }

  /** Why this cache dtype is none for the model in the plan's engine; "" where it is one. */
  function cacheError(plan, kv = plan.kv) {
    const cache = plan.model.caches[kv];
    if (!cache || cache.error) return cache ? cache.error : `${kv} is not on this page`;
    return cache.by[plan.engine].error || "";
  }

  /** The quantities that coefficients multiply, see membudget.engines.activations.coefficients. */
  function quantities(plan, ctx, count) {
    const plain = plan.engine === "transformers";
    const tokens = plain ? ctx * count : plan.batched;
    const sequences = plain ? count : 1n;
    const length = (tokens + sequences - 1n) / sequences;
    return {
      users: count, tokens, rows: plan.logits === "every" ? tokens : sequences,
      squares: sequences * length * length, padded: sequences * length,
    };
  }

  /** The largest moment of a step: [bytes, phase, moment]; an equal one does not replace an earlier one. */
  function peak(plan, ctx, count) {
    const moments = plan.model.activations[plan.model.formats[plan.format].width];
    const known = quantities(plan, ctx, count);
    let found = null;
    for (const moment of ["mlp", "logits", "eager attention", "decode"]) {
      if (moment === "eager attention" && plan.attention !== "eager") continue;
      const bytes = sum(Object.entries(moments[moment]).map(([name, factor]) => big(factor) * known[name]));
      const named = moment === "decode" ? ["decode", "mlp"] : ["prefill", moment];
      if (!found || bytes > found[0]) found = [bytes, ...named];
    }
    return found;
  }

  const capacity = (plan) => big(plan.convention === "nominal" ? plan.machine.nominal : plan.machine.reported);
  const overhead = (plan) => sum(Object.values(plan.page.overhead).map(big));
  const reserve = (plan) => big(plan.machine.os_reserve);
  const weights = (plan) => big(plan.model.formats[plan.format].bytes);

  /** Bytes that a gpu_memory_utilization is a share of. */
  const shared = (plan) => (plan.convention === "reported" && plan.machine.cuda_total) || Number(capacity(plan));

  /** What the engine may claim by gpu_memory_utilization, null for all. */
  const limit = (plan) => (plan.share === null ? null : big(Math.floor(shared(plan) * plan.share)));

  /** What is missing of the operating system's part beside that claim: 0 or less, whatever the users. */
  function missing(plan) {
    const claim = limit(plan);
    return claim === null || !reserve(plan) ? 0n : least(capacity(plan) - reserve(plan) - claim, 0n);
  }

  function headroom(plan, total) {
    const claim = limit(plan);
    const left = capacity(plan) - total;
    if (claim === null) return left;
    const free = least(left, claim - (total - reserve(plan)));
    return missing(plan) < 0n ? least(free, missing(plan)) : free;
  }

  const total = (plan, ctx, count) => overhead(plan) + reserve(plan) + weights(plan) +
    request(plan, ctx) * count + peak(plan, ctx, count)[0];
  const left = (plan, ctx, count) => headroom(plan, total(plan, ctx, count));

  /** The largest n in [0, top] for which room(n) >= 0, given that room falls; 0 if not even 1. */
  function largest(room, top) {
    if (room(1n) < 0n) return 0n;
    let low = 1n, high = 2n;
    while (high <= top && room(high) >= 0n) [low, high] = [high, high * 2n];
    high = least(high, top + 1n);
    while (high - low > 1n) {
      const middle = (low + high) / 2n;
      if (room(middle) >= 0n) low = middle; else high = middle;
    }
    return low;
  }
  const maxUsers = (plan, ctx = plan.ctx) => largest((count) => left(plan, ctx, count), big(plan.page.max.users));
  const maxCtx = (plan) => largest((ctx) => left(plan, ctx, plan.users), big(plan.page.max.ctx));

  // --- single changes, each tried by the same sums ------------------------------------
  const fits = (plan) => left(plan, plan.ctx, plan.users) >= 0n;

  /** What would fit in place of a plan that does not: [text], the change that costs least quality first. */
  function ways(plan) {
    const kind = plan.page.engines[plan.engine], found = [], count = maxUsers(plan), ctx = maxCtx(plan);
    if (kind.small_cache && kind.small_cache !== plan.kv && !cacheError(plan, kind.small_cache)) {
      const small = { ...plan, kv: kind.small_cache };
      if (fits(small)) found.push(`${kind.small_cache} KV cache`);
    }
    for (const name of [...kind.smaller, ...kind.smallest]) {
      const known = plan.model.formats[name];
      if (!known || known.error || big(known.bytes) >= weights(plan) || known.gguf) continue;
      if (!fits({ ...plan, format: name })) continue;
      found.push(`${name} weights`);
      break;
    }
    if (count > 0n) found.push(users(count));
    if (ctx > 0n) found.push(`${group(ctx)} tokens of context`);
    return found;
  }

  // --- the whole ledger ----------------------------------------------------------------
  function predict(plan) {
    const each = request(plan, plan.ctx);
    const [bytes, phase, moment] = peak(plan, plan.ctx, plan.users);
    const sums = {
      overhead: overhead(plan) + reserve(plan), weights: weights(plan), activations: bytes,
      kv_cache: each * plan.users,
    };
    const all = sum(Object.values(sums));
    const room = headroom(plan, all);
    const ledger = {
      sums, each, phase, moment, total: all, capacity: capacity(plan), limit: limit(plan), headroom: room,
      fits: room >= 0n, maxUsers: maxUsers(plan), reserve: reserve(plan),
    };
    ledger.limiting = ledger.fits ? null : limiting(plan, sums);
    ledger.verdict = verdict(plan, ledger);
    ledger.read = big(plan.model.formats[plan.format].active) + each * plan.users;
    ledger.rate = plan.machine.bandwidth && ledger.read ? plan.machine.bandwidth / Number(ledger.read) : null;
    return ledger;
  }

  function limiting(plan, sums) {
    if (missing(plan) < 0n) return SHARE;
    let running = 0n;
    for (const bucket of ["overhead", "weights", "activations", "kv_cache"]) {
      running += sums[bucket];
      if (headroom(plan, running) < 0n) return bucket;
    }
    return "kv_cache";
  }

  /** Whether it fits and by how much, and single changes that would; the sentence of Python where it has one. */
  function verdict(plan, ledger) {
    const known = plan.page.start.verdicts[plan.machine.name];
    if (known && plan.asStarted) return known;
    if (ledger.fits) return `fits: ${users(plan.users)} x ${group(plan.ctx)} tokens leave ${short(ledger.headroom)}.`;
    const over = `does not fit: ${short(-ledger.headroom)} over, ${ledger.limiting} is short first`;
    const changes = ways(plan);
    return changes.length ? `${over}; would fit with ${changes.join("; or ")}.` : `${over}; no single change makes it fit.`;
  }

  return { predict, maxUsers, cacheError, short, decimal, group, users };
})();
