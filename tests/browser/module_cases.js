/* Random cases for the pure modules of the page; each returns what went wrong. An expression, evaluated by test_modules.py. */
({
    stream: ({ newTurn, applyFrame }, random) => {
        const problems = [];
        for (let run = 0; run < 500; run += 1) {
            let seq = 0;
            let blocks = [];
            let turn = newTurn('m');
            let isBehind = true;
            const snapshot = () => ({
                type: 'turn.snapshot', seq, stage: 'writing', position: 0, done: 0, total: 0,
                thinking: null,
                blocks: blocks.map((html, index) => ({ index, html, is_done: false })),
            });
            for (let step = 0; step < 30; step += 1) {
                seq += 1;
                let frame;
                if (random() < 0.2) {
                    frame = { type: 'turn.stage', seq, stage: 'reading', position: 0, done: step, total: 30 };
                } else {
                    const keep = Math.max(0, blocks.length - Math.floor(random() * 2));
                    const added = Array.from({ length: 1 + Math.floor(random() * 2) }, () => `<p>${random()}</p>`);
                    blocks = [...blocks.slice(0, keep), ...added];
                    frame = {
                        type: 'turn.delta', seq, num_blocks: blocks.length, thinking: null,
                        blocks: added.map((html, i) => ({ index: keep + i, html, is_done: false })),
                    };
                }
                if (random() < 0.15) { isBehind = true; continue; } // lost on the way
                const before = JSON.stringify(turn);
                const next = applyFrame(turn, frame);
                if (JSON.stringify(turn) !== before) problems.push('a turn was changed in place');
                if (isBehind && next.verdict === 'applied') problems.push('a gap was not seen');
                if (!isBehind && next.verdict !== 'applied') problems.push('a frame was refused');
                if (next.verdict === 'gap') {
                    turn = applyFrame(turn, snapshot()).turn;
                    isBehind = false;
                } else {
                    turn = next.turn;
                }
                if (applyFrame(turn, frame).verdict !== 'old') problems.push('a frame was taken twice');
                const isSame = turn.blocks.map((block) => block.html).join() === blocks.join();
                if (!isBehind && !isSame) problems.push('blocks differ');
            }
        }
        return [...new Set(problems)];
    },
    outbox: (outbox, random) => {
        const problems = [];
        for (let run = 0; run < 500; run += 1) {
            let entries = [];
            let written = 0;
            const taken = [];
            const parents = new Map();
            for (let step = 0; step < 40; step += 1) {
                const dice = random();
                if (dice < 0.3) {
                    const clientId = String(written += 1);
                    entries = outbox.add(entries, { clientId, conversation: 'c', text: clientId, isNew: false });
                } else if (dice < 0.4) {
                    entries = outbox.allWaiting(entries); // the line was lost
                } else {
                    const entry = outbox.next(entries, 'c', random() < 0.3);
                    if (!entry) continue;
                    entries = outbox.sent(entries, entry.clientId, `leaf ${step}`);
                    const { parent } = outbox.frameOf(outbox.find(entries, entry.clientId));
                    const first = parents.get(entry.clientId) ?? parent;
                    if (parent !== first) problems.push('sent again under another parent');
                    parents.set(entry.clientId, first);
                    const out = entries.filter((other) => other.state === 'sent');
                    if (out.length > 1) problems.push('two are out at once');
                    if (random() < 0.7) {
                        taken.push(entry.clientId);
                        entries = outbox.remove(entries, entry.clientId);
                    }
                }
            }
            const all = [...taken, ...entries.map((entry) => entry.clientId)].map(Number);
            if (all.some((number, index) => number !== index + 1)) problems.push('lost, doubled or out of order');
        }
        return [...new Set(problems)];
    },
    delays: ({ retryDelay }, random) => Array.from({ length: 40 }, (_, attempt) => {
        const delay = retryDelay(attempt, random);
        return delay >= 250 && delay <= 30000 ? null : delay;
    }).filter((delay) => delay !== null),
    drafts: ({ isWorthTelling }, random) => {
        const problems = [];
        for (let run = 0; run < 50; run += 1) {
            let [told, numTold, text] = ['', 0, ''];
            while (text.length < 100_000) {
                text += 'x'.repeat(1 + Math.floor(random() * 400)); // typed, or pasted
                if (!isWorthTelling(text, told)) continue;
                if (text.length - told.length < 160) problems.push('a few words are told');
                told = text;
                numTold += text.length;
            }
            if (numTold > 12 * text.length) problems.push('the same is told again and again');
            if (text.length - told.length > 400 + text.length / 10) problems.push('much is not told');
        }
        return [...new Set(problems)];
    },
    keys: ({ isSendKey, isEnter, shortcut }) => {
        const key = (init) => ({ key: 'Enter', keyCode: 13, isComposing: false, ...init });
        return [
            isSendKey(key()), isEnter(key()), !isSendKey(key({ shiftKey: true })),
            !isSendKey(key({ isComposing: true })), !isSendKey(key({ keyCode: 229 })),
            !isSendKey(key({ keyCode: 229, ctrlKey: true })),
            !isEnter(key({ isComposing: true })), !isEnter(key({ keyCode: 229 })),
            shortcut(key({ key: 'Escape' })) === 'escape', shortcut(key({ key: 'Escape', isComposing: true })) === '',
        ].flatMap((isRight, index) => (isRight ? [] : [index]));
    },
    format: ({ countChars, isBlank, lengthText, seconds, stageText, statsLine }) => [
        countChars('aé二🙂') === 4, countChars('\ud83d') === 1, lengthText('one two  three') === '3 words',
        lengthText('二分查找') === '4 characters', seconds(206) === '0.21 s'.replace(' ', seconds(206)[4]),
        stageText({ stage: 'queued', position: 2 }) === 'Queued, #2',
        stageText({ stage: 'reading', done: 412, total: 1080 }) === 'Reading 38 % (412 of 1,080 tokens)',
        stageText({ stage: 'writing' }) === 'Writing',
        isBlank(' \n\u200b\ufeff\u2060\u3164\u2800\ufe0f\u{e0041}') && isBlank(''),
        !isBlank('\u200b.') && !isBlank('\u{1f469}\u200d\u{1f4bb}'),
        stageText({ stage: 'storing', problem: 'The disk is full.' }) === 'The disk is full.',
        statsLine({ prompt_tokens: 0, reused_ram: 0, reused_disk: 0, computed: 0, ttft_ms: 0, decode_tok_s: 0 }) === '',
        statsLine({ prompt_tokens: 30, reused_ram: 20, reused_disk: 5, computed: 5, ttft_ms: 0, decode_tok_s: 0 })
            === 'prompt 30 = 25 reused + 5 computed',
    ].flatMap((isRight, index) => (isRight ? [] : [index])),
})
