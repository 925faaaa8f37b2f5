//! Texts that come and go become what they become alone, without a new program for each.

use kiln::{Mode, Options};
use kiln_llm::{Engine, EngineOptions, Event, GeneratorOptions, Id, Opened, Request, Sampling, Stop};
use std::collections::BTreeMap;

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

/// Prompts and requests of all kinds, with what each becomes alone.
struct Cases {
    opened: Opened,
    texts: Vec<(Vec<u32>, Request, Vec<u32>, Stop)>,
}

impl Cases {
    fn new(count: usize) -> Cases {
        let opened = kiln_llm::embedded().unwrap();
        let mut random = Random(42);
        let options = GeneratorOptions { context: 96, ..GeneratorOptions::default() };
        let mut alone = opened.generator(options).unwrap();
        let words = "Once upon a time there was a little dog who saw a red ball in the park and Lily said no";
        let words: Vec<&str> = words.split(' ').collect();
        let texts = (0..count).map(|_| {
            let prompt: Vec<&str> = (0..1 + random.below(14)).map(|_| words[random.below(words.len())]).collect();
            let prompt = opened.tokenizer().unwrap().encode(&prompt.join(" "), true).unwrap();
            let sampling = match random.below(4) {
                0 => Sampling { temperature: 0.8, top_k: 20, seed: random.below(1000) as u64, ..Sampling::default() },
                1 => Sampling { temperature: 1.0, top_p: 0.9, repetition_penalty: 1.2, ..Sampling::default() },
                _ => Sampling::default(),
            };
            let stop = if random.below(5) == 0 { vec!["and ".to_owned()] } else { Vec::new() };
            let request = Request { max_tokens: random.below(50), sampling, stop, ..Request::default() };
            let text = alone.generate(&prompt, &request).unwrap();
            (prompt, request, text.ids, text.stop)
        });
        let texts = texts.collect();
        Cases { opened, texts }
    }

    fn engine(&self, options: EngineOptions) -> Engine {
        self.opened.engine(EngineOptions { context: 96, ..options }).unwrap()
    }

    /// Submits all texts at random moments, cancels some, and compares the others.
    fn run(&self, engine: &mut Engine, seed: u64, cancel: bool) {
        let mut random = Random(seed);
        let mut open: BTreeMap<Id, (usize, Vec<u32>, String)> = BTreeMap::new();
        let mut next = 0;
        while next < self.texts.len() || !engine.is_idle() {
            while next < self.texts.len() && random.below(3) > 0 {
                let (prompt, request, ..) = &self.texts[next];
                let id = engine.submit(prompt, request.clone()).unwrap();
                open.insert(id, (next, Vec::new(), String::new()));
                next += 1;
            }
            if cancel && random.below(6) == 0 && !open.is_empty() {
                let id = *open.keys().nth(random.below(open.len())).unwrap();
                let (index, tokens, _) = open.remove(&id).unwrap();
                let generated = engine.cancel(id).unwrap().unwrap();
                assert_eq!(generated.ids, tokens);
                assert!(self.texts[index].2.starts_with(&tokens));
                assert!(engine.cancel(id).unwrap().is_none(), "it is gone");
            }
            for event in engine.step().unwrap() {
                match event {
                    Event::Token { id, token, text } => {
                        let (_, tokens, shown) = open.get_mut(&id).unwrap();
                        tokens.push(token);
                        shown.push_str(&text);
                    }
                    Event::Done { id, generated } => {
                        let (index, tokens, shown) = open.remove(&id).unwrap();
                        let (_, request, expected, stop) = &self.texts[index];
                        assert_eq!((&generated.ids, generated.stop), (expected, *stop), "text {index}: {request:?}");
                        assert_eq!(tokens, generated.ids);
                        assert!(generated.text.starts_with(&shown));
                    }
                }
            }
        }
        assert!(open.is_empty());
        assert_eq!(engine.free_pages(), engine.options().pages.unwrap(), "no page is lost");
    }
}

#[test]
fn texts_that_come_and_go_are_what_they_are_alone() {
    let cases = Cases::new(30);
    for (seed, compile) in [(1, Some(Options::default())), (2, None)] {
        for steady in [false, true] {
            let options = EngineOptions { slots: 4, page: 8, steady, compile: compile.clone(), ..Default::default() };
            let mut engine = cases.engine(options);
            cases.run(&mut engine, seed, false);
            cases.run(&mut engine, seed + 10, true);
        }
    }
}

#[test]
fn every_mode_gives_the_same_texts() {
    let cases = Cases::new(12);
    for mode in Mode::ALL {
        let compile = Some(Options { mode, ..Options::default() });
        cases.run(&mut cases.engine(EngineOptions { slots: 4, compile, ..Default::default() }), 5, false);
    }
}

#[test]
fn joining_and_leaving_makes_no_new_programs() {
    let cases = Cases::new(30);
    let mut engine = cases.engine(EngineOptions { slots: 4, page: 16, steady: true, ..Default::default() });
    cases.run(&mut engine, 3, false);
    let made = engine.compiles();
    // One a rule, of which there are three here: nobody penalises without drawing.
    assert!(made.1 <= 4, "{made:?}");
    for seed in 4..9 {
        cases.run(&mut engine, seed, true);
    }
    let after = engine.compiles();
    assert!(after.1 <= 4, "{made:?} {after:?}");
    // By rows: each power of two up to the slots.
    let mut engine = cases.engine(EngineOptions { slots: 4, page: 16, ..Default::default() });
    for seed in 4..9 {
        cases.run(&mut engine, seed, true);
    }
    assert!(engine.compiles().1 <= 4 * 3, "{:?}", engine.compiles());
}

#[test]
fn texts_that_need_more_pages_than_there_are_wait_or_are_computed_again() {
    let cases = Cases::new(24);
    // A context is 12 pages; all of them together have 14.
    for (prefill, pages) in [(512, 14), (8, 14), (16, 20)] {
        let mut engine =
            cases.engine(EngineOptions { slots: 6, page: 8, pages: Some(pages), prefill, ..Default::default() });
        for seed in 1..4 {
            cases.run(&mut engine, seed, seed == 2);
        }
        assert!(engine.preempted() > 0);
    }
}

/// A text longer than all pages ends where they end.
#[test]
fn a_text_that_no_page_is_left_for_ends() {
    let cases = Cases::new(1);
    let mut engine = cases.engine(EngineOptions { slots: 2, page: 8, pages: Some(3), ..Default::default() });
    let message = engine.submit(&[1; 25], Request::default()).unwrap_err().to_string();
    assert_eq!(message, "a prompt of 25 tokens does not fit a context of 24");
    let request = Request { max_tokens: 60, ..Request::default() };
    let mut alone = cases.opened.generator(GeneratorOptions { context: 24, ..Default::default() }).unwrap();
    let prompts = [vec![1, 403, 407, 261, 378], vec![1, 403, 407]];
    let ids: Vec<Id> = prompts.iter().map(|prompt| engine.submit(prompt, request.clone()).unwrap()).collect();
    let mut done = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Done { id, generated } = event {
                done.insert(id, generated);
            }
        }
    }
    for (prompt, id) in prompts.iter().zip(ids) {
        let expected = alone.generate(prompt, &request).unwrap();
        assert_eq!((&done[&id].ids, done[&id].stop), (&expected.ids, Stop::Context));
    }
}

#[test]
fn a_text_grows_over_many_pages_with_few_programs() {
    let opened = kiln_llm::embedded().unwrap();
    let request = Request { max_tokens: 490, ..Request::default() };
    let prompt = [1, 403, 407, 261, 378];
    let fixed = opened.generator(GeneratorOptions { context: 512, ..Default::default() });
    let expected = fixed.unwrap().generate(&prompt, &request).unwrap();
    let mut engine = opened.engine(EngineOptions { slots: 1, context: 512, page: 16, ..Default::default() }).unwrap();
    engine.submit(&prompt, request).unwrap();
    let mut ids = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { token, .. } = event {
                ids.push(token);
            }
        }
    }
    assert_eq!(ids, expected.ids);
    // 31 pages: a table of 16, and one of 32.
    assert_eq!(engine.compiles(), (1, 2));
}

/// Pages of texts that have ended are taken over, given up and lost to others, and every text is still what it is alone.
#[test]
fn texts_that_take_over_pages_are_what_they_are_alone() {
    let cases = Cases::new(24);
    for (pages, compile) in [(None, Some(Options::default())), (Some(14), Some(Options::default())), (Some(20), None)] {
        let options = EngineOptions { slots: 4, page: 8, pages, reuse: true, compile, ..Default::default() };
        let mut engine = cases.engine(options);
        for seed in 1..4 {
            cases.run(&mut engine, seed, seed == 2);
        }
    }
}

/// Two conversations side by side: each turn is read from where it is new, and needs no new program.
#[test]
fn turns_take_over_the_pages_of_those_before() {
    let opened = kiln_llm::embedded().unwrap();
    let mut alone = opened.generator(GeneratorOptions { context: 256, ..Default::default() }).unwrap();
    let options = EngineOptions { slots: 2, context: 256, page: 8, reuse: true, ..Default::default() };
    let mut engine = opened.engine(options).unwrap();
    let request = Request { max_tokens: 10, ..Request::default() };
    let mut talks = [vec![1, 403, 407, 261, 378], vec![1, 300, 301, 302, 303, 304, 305, 306, 307]];
    let mut made = None;
    for turn in 0..6 {
        let ids = [0, 1].map(|talk| engine.submit(&talks[talk], request.clone()).unwrap());
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                let Event::Done { id, generated } = event else { continue };
                let talk = &mut talks[usize::from(id == ids[1])];
                assert_eq!(generated.ids, alone.generate(talk, &request).unwrap().ids, "turn {turn}");
                // All but the last token of the answer, and what is said now.
                let read = talk.len() - generated.reused;
                assert_eq!(read, if turn == 0 { talk.len() } else { 1 + 6 }, "turn {turn}");
                talk.extend(generated.ids);
                talk.extend((0..6).map(|at| 310 + turn + at));
            }
        }
        assert_eq!(*made.get_or_insert(engine.compiles()), engine.compiles(), "turn {turn}");
    }
    assert_eq!(engine.free_pages(), engine.options().pages.unwrap());
}
