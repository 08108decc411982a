"use strict";
// The arithmetic of membudget.planning.ledger, capacity and changes, on exact integers (BigInt).
// Sizes and coefficients come from Python; here are only sums, minima, maxima and searches.
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
  const real = (share) => (Number.isInteger(share) ? `${share}.0` : String(share));
  const users = (number) => `${group(number)} user${big(number) === 1n ? "" : "s"}`;

  // --- one plan ----------------------------------------------------------------------
  // plan: {page, model, format, kv, ctx, users, machine, convention, engine, attention, logits, batched, share}

  /** Bytes of one user's `tokens` tokens: windows are minima, compressed layers keep whole entries. */
  function request(plan, tokens) {
    const cache = plan.model.caches[plan.kv];
    if (plan.engine === "llama_cpp") return slot(cache.llama_cpp, big(plan.page.cells), tokens, plan.batched);
    let total = big(cache.fixed);
    for (const [size, window] of cache.grows) total += big(size) * (window ? least(tokens, big(window)) : tokens);
    for (const [size, rate] of cache.entries) total += big(size) * (tokens / big(rate));
    return total;
  }

  /** llama.cpp's cells: padded to so many, and a window's own beside those of one step. */
  function slot(cache, step, tokens, ubatch) {
    const pad = (count) => ((count + step - 1n) / step) * step;
    const cells = pad(tokens);
    let total = big(cache.fixed);
    for (const [size, window] of cache.grows) total += big(size) * (window ? pad(least(cells, big(window) + ubatch)) : cells);
    return total;
  }

  /** What a decode step cannot do without of one user's cache: of llama.cpp's cells those of tokens in sight. */
  function readOf(plan, each) {
    if (plan.engine !== "llama_cpp") return each;
    const { fixed, grows } = plan.model.caches[plan.kv].llama_cpp;
    return grows.reduce((all, [size, window]) => all + big(size) * (window ? least(plan.ctx, big(window)) : plan.ctx), big(fixed));
  }

  /** Why this cache dtype is none for the model in the plan's engine; "" where it is one. */
  function cacheError(plan, kv = plan.kv) {
    const cache = plan.model.caches[kv];
    if (!cache || cache.error) return cache ? cache.error : `${kv} is not on this page`;
    return (plan.engine === "llama_cpp" && cache.llama_cpp.error) || "";
  }

  /** The quantities that coefficients multiply, see membudget.engines.transformers.activations.coefficients. */
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

  /** The largest share, in hundredths, that leaves the operating system its part; null for none. */
  function shareThatLeaves(plan) {
    const hundredths = ((capacity(plan) - reserve(plan)) * 100n) / big(shared(plan));
    return hundredths > 0n ? Number(least(hundredths, 100n)) / 100 : null;
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

  // --- what would make it fit: membudget.planning.suggestions --------------------------------------
  const fits = (plan) => left(plan, plan.ctx, plan.users) >= 0n;

  /** The plan in the format of that name, its own where that is its name; null where it does not apply. */
  function inFormat(plan, name) {
    if (plan.model.formats[plan.format].name === name) return plan;
    const known = plan.model.formats[name];
    return known && !known.error ? { ...plan, format: name } : null;
  }

  /** The largest share that leaves the operating system its part, alone or with what else is then too much. */
  function withSmallerShare(plan) {
    const share = shareThatLeaves(plan);
    if (share === null) return [];
    const smaller = { ...plan, share };
    const text = `gpu_memory_utilization ${real(share)}`;
    if (fits(smaller)) return [`${text} instead of ${real(plan.share)}`];
    return suggest(smaller).map((change) => `${text} with ${change}`);
  }

  /** The most that the engine may be given, where that is more than it is; null for none. */
  function largestShare(plan) {
    if (plan.share === null) return null;
    const top = plan.machine.most_share, most = reserve(plan) ? Math.min(shareThatLeaves(plan) || 0, top) : top;
    return most > plan.share ? most : null;
  }

  const SETTINGS = ["share", "attention", "logits", "batched"];

  /** Every setting of the engine at its lightest. */
  function lightest(plan) {
    const step = plan.engine === "transformers" ? plan.batched : least(plan.batched, big(plan.page.small_step));
    return { ...plan, share: largestShare(plan) || plan.share, attention: "sdpa", logits: "last", batched: step };
  }

  const sameEngine = (plan, other) => SETTINGS.every((name) => plan[name] === other[name]);

  function engineText(plan, other) {
    const step = plan.engine === "llama_cpp" ? "n_ubatch" : "max_num_batched_tokens", parts = [];
    if (other.share !== plan.share) parts.push(`gpu_memory_utilization ${real(other.share)} instead of ${real(plan.share)}`);
    if (other.attention !== plan.attention) parts.push(`${other.attention} attention instead of ${plan.attention}`);
    if (other.logits !== plan.logits) parts.push("logits of the last position instead of every");
    if (other.batched !== plan.batched) parts.push(`${step} ${group(other.batched)} instead of ${group(plan.batched)}`);
    return parts.join(" and ");
  }

  const takes = (plan) => total(plan, plan.ctx, plan.users);

  function lighterEngines(plan) {
    const found = [], most = largestShare(plan);
    if (most !== null && fits({ ...plan, share: most })) {
      let low = Math.trunc(plan.share * 100), high = Math.round(most * 100);
      while (high - low > 1) {
        const middle = Math.floor((low + high) / 2);
        if (fits({ ...plan, share: middle / 100 })) high = middle; else low = middle;
      }
      found.push({ ...plan, share: high / 100 });
    }
    const light = lightest(plan);
    for (const name of SETTINGS.slice(1)) if (light[name] !== plan[name]) found.push({ ...plan, [name]: light[name] });
    return found.filter(fits).map((other) => [engineText(plan, other), takes(plan) - takes(other)]);
  }

  function withLightestEngine(plan) {
    const light = lightest(plan);
    if (sameEngine(plan, light)) return [];
    const text = engineText(plan, light);
    return fits(light) ? [text] : suggest(light).map((more) => `${text} with ${more}`);
  }

  function suggest(plan) {
    if (missing(plan) < 0n) return withSmallerShare(plan);
    const found = [];
    const each = request(plan, plan.ctx);
    const count = maxUsers(plan), ctx = maxCtx(plan);
    if (count > 0n && count < plan.users) {
      found.push([`${users(count)} instead of ${group(plan.users)}`, each * (plan.users - count)]);
    }
    if (ctx > 0n && ctx < plan.ctx) {
      const frees = (each - request(plan, ctx)) * plan.users;
      found.push([`${group(ctx)} tokens of context instead of ${group(plan.ctx)}`, frees]);
    }
    const small = withSmallCache(plan);
    if (small !== plan && fits(small)) {
      found.push([cacheText(small), (each - request(small, plan.ctx)) * plan.users]);
    }
    const kind = plan.page.engines[plan.engine];
    found.push(...lighter(plan, kind.smaller));
    found.push(...lighterEngines(plan));
    if (found.length) return found.sort((a, b) => (a[1] < b[1] ? -1 : a[1] > b[1] ? 1 : 0)).map(([text]) => text);
    const single = () => lighter(plan, kind.smallest).map(([text]) => text);
    return [() => together(plan, kind.smaller), single, () => together(plan, kind.smallest), () => withLightestEngine(plan)]
      .reduce((kept, next) => (kept.length ? kept : next()), []);
  }

  function lighter(plan, names) {
    const fitting = smallerOf(plan, names).find((way) => plannedFor(way).every(fits));
    return fitting ? [[weightsText(fitting), weights(plan) - weights(fitting)]] : [];
  }

  function together(plan, names) {
    const ways = [plan, ...smallerOf(plan, names)].map(withSmallCache);
    for (const way of ways) {
      const count = plannedFor(way).map((each) => maxUsers(each)).reduce(least, plan.users);
      if (count > 0n) return [combined(plan, { ...way, users: count })];
    }
    for (const way of ways) {
      const ctx = plannedFor({ ...way, users: 1n }).map(maxCtx).reduce(least, plan.ctx);
      if (ctx > 0n) return [combined(plan, { ...way, users: 1n, ctx })];
    }
    return [];
  }

  function combined(plan, other) {
    const parts = [];
    if (other.format !== plan.format) parts.push(weightsText(other));
    if (other.kv !== plan.kv) parts.push(cacheText(other));
    const last = users(other.users) + (other.ctx === plan.ctx ? "" : ` of ${group(other.ctx)} tokens`);
    return parts.length ? `${parts.join(", ")} and ${last} together` : last;
  }

  function smallerOf(plan, names) {
    const own = plan.model.formats[plan.format].name;
    return names.filter((name) => name !== own).map((name) => inFormat(plan, name))
      .filter((found) => found && weights(found) < weights(plan) && plannedFor(found).every((way) => !cacheError(way)));
  }

  /** The plan; where another engine reads its weights, the same for that engine too: both must fit. */
  function plannedFor(plan) {
    if (!foreign(plan)) return [plan];
    const { engine } = plan.model.caches[plan.kv], kv = engine === null || engine === "llama.cpp" ? plan.kv : "fp16";
    return [plan, { ...plan, engine: "llama_cpp", kv, batched: big(plan.page.engines.llama_cpp.batched_tokens) }];
  }

  function withSmallCache(plan) {
    const kv = plan.page.engines[plan.engine].small_cache;
    if (!kv || foreign(plan) || cacheError(plan, kv)) return plan;
    const small = { ...plan, kv };
    return request(small, plan.ctx) < request(plan, plan.ctx) ? small : plan;
  }

  function nothingHelps(plan) {
    const kind = plan.page.engines[plan.engine], share = missing(plan) < 0n ? shareThatLeaves(plan) : null;
    const light = lightest(share === null ? plan : { ...plan, share });
    const ways = [light, ...smallerOf(light, [...kind.smaller, ...kind.smallest])], last = ways[ways.length - 1];
    const parts = sameEngine(plan, light) ? [] : [engineText(plan, light)];
    if (last.format !== plan.format) parts.push(weightsText(last));
    const small = withSmallCache(last);
    if (small !== last) parts.push(cacheText(small));
    const changed = parts.length ? ` with ${parts.join(" and ")}` : "";
    return `nothing that membudget knows helps: not even 1 user with 1 token${changed}`;
  }

  const cacheText = (plan) => `${plan.kv.startsWith("fp8") ? "an" : "a"} ${plan.kv} KV cache`;

  const foreign = (plan) => plan.engine !== "llama_cpp" && plan.page.gguf.includes(plan.model.formats[plan.format].name);

  const weightsText = (plan) => `${plan.model.formats[plan.format].name} weights${foreign(plan) ? " (GGUF, for llama.cpp)" : ""}`;

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
    ledger.brokenBy = ledger.fits ? null : brokenBy(plan, sums);
    ledger.verdict = verdict(plan, ledger);
    ledger.read = big(plan.model.formats[plan.format].active) + readOf(plan, each) * plan.users;
    ledger.rate = plan.machine.bandwidth && ledger.read ? plan.machine.bandwidth / Number(ledger.read) : null;
    return ledger;
  }

  function brokenBy(plan, sums) {
    if (missing(plan) < 0n) return SHARE;
    let running = 0n;
    for (const bucket of ["overhead", "weights", "activations", "kv_cache"]) {
      running += sums[bucket];
      if (headroom(plan, running) < 0n) return bucket;
    }
    return "kv_cache";
  }

  function limitText(plan, ledger, machine = true) {
    if (ledger.limit !== null && ledger.limit + ledger.reserve < ledger.capacity) {
      const given = `gpu_memory_utilization ${real(plan.share)} gives ${plan.engine}`;
      return `the ${short(ledger.limit)} that ${given} on ${plan.machine.name}`;
    }
    return machine ? `the ${short(ledger.capacity)} of ${plan.machine.name}` : short(ledger.capacity);
  }

  /** What a share that takes what the operating system is left takes, in one sentence. */
  function shareText(plan, ledger) {
    const claim = `gpu_memory_utilization ${real(plan.share)} claims ${short(ledger.limit)} of ${short(ledger.capacity)}`;
    const left = short(most(ledger.capacity - ledger.limit, 0n));
    return `${claim} and leaves ${left} of the operating system's ${short(ledger.reserve)}`;
  }

  function verdict(plan, ledger) {
    if (ledger.fits) {
      const who = `${users(plan.users)} x ${group(plan.ctx)} tokens`;
      const free = `${short(ledger.headroom)} of ${limitText(plan, ledger, false)}`;
      return `fits: ${who} leave ${free}; ${users(ledger.maxUsers)} would fit.`;
    }
    const changes = suggest(plan);
    const help = changes.length ? `it would fit with ${changes.join("; or ")}.`
      : `${nothingHelps(plan)} fits ${plan.machine.name}.`;
    const bucket = ledger.brokenBy;
    if (bucket === SHARE) return `does not fit: ${shareText(plan, ledger)}; ${help}`;
    const over = `${short(-ledger.headroom)} over ${limitText(plan, ledger)}`;
    return `does not fit: ${bucket} breaks it, ${over} (${bucket} is ${short(ledger.sums[bucket])}); ${help}`;
  }

  return { predict, maxUsers, cacheError, short, decimal, group, users };
})();
