//! Steps launched before the tokens of earlier ones are read: the texts are the same, wherever they end.

use kiln::runtime::QueuedBackend;
use kiln::{Device, Mode, Options};
use kiln_llm::{Generated, Generator, GeneratorOptions, Opened, Request, Sampling, Stop, WeightFormat};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

const PROMPTS: [&[u32]; 3] = [&[1, 403, 407, 261, 378], &[1, 403], &[1, 317, 394, 261, 370, 268, 414]];

fn generator(opened: &Opened, ahead: usize, mode: Option<Mode>, context: usize) -> Generator {
    let compile = mode.map(|mode| Options { mode, ..Options::default() });
    let options = GeneratorOptions { context, compile, ahead: Some(ahead), reuse: true, ..GeneratorOptions::default() };
    opened.generator(options).unwrap()
}

/// What there is to know of texts but their times.
fn told(texts: Vec<Generated>) -> Vec<(Vec<u32>, Stop, usize)> {
    texts.into_iter().map(|text| (text.ids, text.stop, text.reused)).collect()
}

/// All of it for one number of steps ahead: ends by length, by a stop token in the middle, by a full context; alone, as a
/// batch with an end of its own each, drawn, and a second turn over what the cache holds.
fn everything(opened: &Opened, ahead: usize, mode: Option<Mode>) -> Vec<(Vec<u32>, Stop, usize)> {
    let mut generator = generator(opened, ahead, mode, 48);
    let mut all = Vec::new();
    let plain = |max_tokens| Request { max_tokens, ..Request::default() };
    for max_tokens in [0, 1, 2, 5, 20, 1000] {
        let text = generator.generate(PROMPTS[0], &plain(max_tokens)).unwrap();
        all.push((generator.held().to_vec(), Stop::Length, 0));
        all.extend(told(vec![text]));
    }
    // A token of the text as its end.
    let long = generator.generate(PROMPTS[0], &plain(20)).unwrap().ids;
    for at in [0, 1, 6, 19] {
        let request = Request { stop_tokens: vec![long[at]], ..plain(30) };
        all.extend(told(vec![generator.generate(PROMPTS[0], &request).unwrap()]));
        // What the cache holds is what was read: a second turn goes on from there.
        let mut next = PROMPTS[0].to_vec();
        next.extend(&long[..=at]);
        next.push(403);
        all.push((generator.held().to_vec(), Stop::Length, 0));
        all.extend(told(vec![generator.generate(&next, &plain(8)).unwrap()]));
    }
    let drawn = |seed, max_tokens| Request {
        sampling: Sampling { temperature: 0.9, repetition_penalty: 1.3, seed, ..Sampling::default() },
        ..plain(max_tokens)
    };
    all.extend(told(vec![generator.generate(PROMPTS[1], &drawn(7, 25)).unwrap()]));
    let requests = [
        plain(9),
        Request { stop_tokens: vec![long[4], long[5], 261], ..plain(40) },
        Request { max_tokens: 1000, ..drawn(3, 0) },
    ];
    let texts: Vec<(&[u32], &Request)> = PROMPTS.into_iter().zip(&requests).collect();
    all.extend(told(generator.generate_each(&texts, |_, _, _| ControlFlow::Continue(())).unwrap()));
    all
}

#[test]
fn texts_do_not_depend_on_the_steps_ahead() {
    let opened = kiln_llm::embedded().unwrap();
    for mode in [None, Some(Mode::Default), Some(Mode::ReduceOverhead)] {
        let want = everything(&opened, 0, mode);
        assert!(want.iter().any(|(_, stop, _)| matches!(stop, Stop::Token(_))));
        assert!(want.iter().any(|(_, stop, _)| *stop == Stop::Context));
        for ahead in [1, 4, 100] {
            assert_eq!(everything(&opened, ahead, mode), want, "{ahead} ahead, {mode:?}");
        }
    }
}

/// On a device whose launches return before they are done, outputs that take each other's memory included.
#[test]
fn an_asynchronous_device_gives_the_same_texts() {
    let device = Device::Cuda(100);
    let backend = Arc::new(QueuedBackend::new(kiln::backend(Device::Cpu), device, Duration::ZERO));
    assert!(kiln::backend::install(backend.clone()));
    let (here, there) =
        (kiln_llm::embedded().unwrap(), kiln_llm::open::embedded_on(device, WeightFormat::AsStored).unwrap());
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        let want = everything(&here, 0, Some(mode));
        for ahead in [0, 4] {
            assert_eq!(everything(&there, ahead, Some(mode)), want, "{ahead} ahead, {mode:?}");
        }
    }
    // By default steps run ahead there, and no token waits for the whole queue.
    let mut generator = there.generator(GeneratorOptions { context: 128, ..GeneratorOptions::default() }).unwrap();
    let request = Request { max_tokens: 64, ..Request::default() };
    generator.generate(PROMPTS[0], &request).unwrap();
    let before = backend.waits();
    assert_eq!(generator.generate(PROMPTS[0], &request).unwrap().ids.len(), 64);
    assert!(backend.waits() - before < 8, "{} waits for 64 tokens", backend.waits() - before);
}

#[test]
fn tokens_are_shown_in_order_and_called_off_in_time() {
    let opened = kiln_llm::embedded().unwrap();
    let mut generator = generator(&opened, 4, Some(Mode::Default), 64);
    let want = generator.generate(PROMPTS[0], &Request { max_tokens: 20, ..Request::default() }).unwrap().ids;
    let mut shown = Vec::new();
    let text = generator
        .generate_with(PROMPTS[0], &Request { max_tokens: 20, ..Request::default() }, |token| {
            shown.push(token);
            if shown.len() == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!((shown.as_slice(), text.ids.as_slice(), text.stop), (&want[..7], &want[..7], Stop::Asked));
}
