//! Texts of a batch become what they become alone, wherever they are filled up and whoever is beside them.

use kiln::{DType, Device, Mode, Options, Tensor};
use kiln_llm::{Generator, GeneratorOptions, Numbers, Opened, Padding, Request, Sampling, Stop};
use std::ops::ControlFlow;

const COMPILED: fn() -> Option<Options> = || Some(Options::default());

fn stories() -> Opened {
    kiln_llm::embedded().unwrap()
}

fn generator(opened: &Opened, compile: Option<Options>, more: GeneratorOptions) -> Generator {
    opened.generator(GeneratorOptions { context: 128, compile, ..more }).unwrap()
}

/// Beginnings of several lengths.
fn prompts(opened: &Opened) -> Vec<Vec<u32>> {
    let texts = [
        "Once upon a time",
        "Tom",
        "One day a big dog ran to the park and saw a red ball. He wanted to play with it, so he",
        "Lily and her mom went to the shop.",
        "The sun was very hot and the little bird",
    ];
    let tokenizer = opened.tokenizer().unwrap();
    texts.iter().map(|text| tokenizer.encode(text, true).unwrap()).collect()
}

#[test]
fn a_batch_is_its_texts_alone() {
    let opened = stories();
    let prompts = prompts(&opened);
    let request = Request { max_tokens: 40, ..Request::default() };
    let mut single = generator(&opened, None, GeneratorOptions::default());
    let alone: Vec<Vec<u32>> = prompts.iter().map(|p| single.generate(p, &request).unwrap().ids).collect();
    let mut ways: Vec<Option<Options>> =
        Mode::ALL.iter().map(|&mode| Some(Options { mode, ..Options::default() })).collect();
    ways.push(None);
    for compile in ways {
        for padding in [Padding::Left, Padding::Right] {
            let mut batch =
                generator(&opened, compile.clone(), GeneratorOptions { padding, ..GeneratorOptions::default() });
            let together = batch.generate_batch(&prompts, &request).unwrap();
            let ids: Vec<&[u32]> = together.iter().map(|text| &text.ids[..]).collect();
            assert_eq!(ids, alone, "{padding:?} {compile:?}");
            // Four texts take other programs, five the same again.
            assert_eq!(batch.generate_batch(&prompts[..4], &request).unwrap()[2].ids, alone[2]);
        }
    }
}

#[test]
fn long_prompts_go_in_parts() {
    let opened = stories();
    let prompts = prompts(&opened);
    let request = Request { max_tokens: 30, ..Request::default() };
    let mut whole = generator(&opened, COMPILED(), GeneratorOptions::default());
    let alone: Vec<Vec<u32>> = prompts.iter().map(|p| whole.generate(p, &request).unwrap().ids).collect();
    for compile in [None, COMPILED()] {
        for prefill in [1, 7, 16] {
            let mut parts =
                generator(&opened, compile.clone(), GeneratorOptions { prefill, ..GeneratorOptions::default() });
            for (prompt, alone) in prompts.iter().zip(&alone) {
                assert_eq!(parts.generate(prompt, &request).unwrap().ids, *alone);
            }
            let together = parts.generate_batch(&prompts, &request).unwrap();
            assert!(together.iter().map(|text| &text.ids).eq(&alone), "parts of {prefill}");
        }
    }
    // A context that is no multiple of the parts is used to its end.
    let mut full = opened.generator(GeneratorOptions { context: 29, prefill: 16, ..Default::default() }).unwrap();
    let text = full.generate(&[403; 29], &request).unwrap();
    assert_eq!((text.ids.len(), text.stop), (1, Stop::Context));
    assert_eq!(full.generate_batch(&[vec![403; 29], vec![403; 3]], &request).unwrap()[0].ids, text.ids);
}

#[test]
fn each_text_has_its_own_request() {
    let opened = stories();
    let prompts = prompts(&opened);
    let drawn = |seed| Sampling { temperature: 0.9, top_k: 30, top_p: 0.9, seed, ..Sampling::default() };
    let requests = [
        Request { max_tokens: 20, ..Request::default() },
        Request { max_tokens: 25, sampling: drawn(3), ..Request::default() },
        Request { max_tokens: 0, ..Request::default() },
        Request { max_tokens: 30, sampling: Sampling { repetition_penalty: 1.3, ..drawn(4) }, ..Request::default() },
        Request { max_tokens: 90, stop: vec!["day".into()], ..Request::default() },
    ];
    for compile in [None, COMPILED()] {
        let mut generator = generator(&opened, compile, GeneratorOptions::default());
        let texts: Vec<(&[u32], &Request)> = prompts.iter().map(|p| &p[..]).zip(&requests).collect();
        let alone: Vec<_> =
            texts.iter().map(|(prompt, request)| generator.generate(prompt, request).unwrap()).collect();
        let mut shown = vec![Vec::new(); texts.len()];
        let together = generator
            .generate_each(&texts, |row, token, _| {
                shown[row].push(token);
                ControlFlow::Continue(())
            })
            .unwrap();
        for ((alone, together), shown) in alone.iter().zip(&together).zip(shown) {
            assert_eq!((&alone.ids, &alone.text, alone.stop), (&together.ids, &together.text, together.stop));
            assert_eq!(shown, together.ids);
        }
        assert_ne!(together[1].ids, generator.generate(&prompts[1], &requests[0]).unwrap().ids);
    }
}

#[test]
fn stop_strings_end_texts_and_are_never_shown() {
    let opened = stories();
    let mut generator = generator(&opened, COMPILED(), GeneratorOptions::default());
    let request = Request { max_tokens: 60, ..Request::default() };
    let whole = generator.generate_text("Once upon a time", &request, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(whole.stop, Stop::Length);
    for stop in ["girl", "a little girl named Lily. S", "ved to pl", "Lily", "y ou"] {
        let request = Request { stop: vec!["not there".into(), stop.into()], ..request.clone() };
        let mut shown = String::new();
        let text = generator
            .generate_text("Once upon a time", &request, |piece| {
                shown += piece;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(text.stop, Stop::Text(1), "{stop:?} in {:?}", whole.text);
        assert_eq!(text.text, whole.text[..whole.text.find(stop).unwrap()]);
        assert_eq!(shown, text.text);
        assert!(whole.ids.starts_with(&text.ids));
    }
    let asked = generator.generate_text("Once upon a time", &request, |_| ControlFlow::Break(())).unwrap();
    assert_eq!((asked.ids.len(), asked.stop), (1, Stop::Asked));
    let mut without = Generator::new(opened.model.clone(), GeneratorOptions::default()).unwrap();
    let request = Request { stop: vec!["x".into()], ..request };
    let message = without.generate(&[1], &request).unwrap_err().to_string();
    assert_eq!(message, "text and stop strings need a tokenizer (see Generator::with_tokenizer)");
}

/// How often tokens are drawn is as their logits, and the restrictions in transformers' order, say.
#[test]
fn draws_are_distributed_as_asked() {
    // Likelihoods 0.4, 0.3, 0.2, 0.1, not in order.
    let logits: Vec<f32> = [0.2f32, 0.4, 0.1, 0.3].iter().map(|p| p.ln()).collect();
    let cases: [(Sampling, [f64; 4]); 5] = [
        (Sampling { temperature: 1.0, ..Sampling::default() }, [0.2, 0.4, 0.1, 0.3]),
        (Sampling { temperature: 0.5, ..Sampling::default() }, [4.0 / 30.0, 16.0 / 30.0, 1.0 / 30.0, 9.0 / 30.0]),
        (Sampling { temperature: 1.0, top_k: 2, ..Sampling::default() }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
        // Top-p looks at what top-k left: 4/7 is not enough for 0.6, both are.
        (Sampling { temperature: 1.0, top_k: 2, top_p: 0.6, ..Sampling::default() }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
        (Sampling { temperature: 1.0, min_p: 0.45, ..Sampling::default() }, [2.0 / 9.0, 4.0 / 9.0, 0.0, 3.0 / 9.0]),
    ];
    let rows = 4000;
    for (sampling, expected) in cases {
        // Half of them differ in the seed, half in the position.
        let samplings: Vec<Sampling> =
            (0..rows).map(|row| Sampling { seed: row.min(rows / 2), ..sampling.clone() }).collect();
        let numbers = Numbers::new(samplings.iter(), Device::Cpu).unwrap();
        let all = Tensor::from_vec(logits.repeat(rows as usize), [rows as usize, 4], Device::Cpu).unwrap();
        let positions = Tensor::arange(rows as usize, DType::I64, Device::Cpu).unwrap().maximum(rows as i64 / 2);
        let positions = positions.unwrap().unsqueeze(1).unwrap();
        let drawn = numbers.choose(&all, &positions, None, true).unwrap().to_vec::<i64>().unwrap();
        for (token, &expected) in expected.iter().enumerate() {
            let found = drawn.iter().filter(|&&t| t == token as i64).count() as f64 / rows as f64;
            let deviation = (expected * (1.0 - expected) / rows as f64).sqrt();
            assert!((found - expected).abs() <= 4.0 * deviation, "{sampling:?}: {token} {found} {expected}");
        }
    }
}
