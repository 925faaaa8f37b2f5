//! A text that begins as the one before it is read from where it differs, and becomes what it becomes when it is read whole.

use kiln::{DType, Mode, Options, Tensor};
use kiln_llm::{
    Cancel, CausalLm, ChatTemplate, Error, Generated, Generator, GeneratorOptions, Message, OpenOptions, Opened,
    Request, Stop,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Of the largest logit: what the order of sums makes.
const TOLERANCE: f32 = 2e-5;

/// Every architecture that holds keys in a way of its own: all of them, windows in some layers and in all, learned positions.
const MODELS: [&str; 5] = ["llama", "gemma3", "mistral", "gpt2", "phi3-partial"];

fn model(name: &str) -> Arc<dyn CausalLm> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/architectures").join(name);
    let options = OpenOptions { dtype: Some(DType::F32), ..OpenOptions::default() };
    kiln_llm::open(folder.to_str().unwrap(), &options).unwrap().model
}

fn generator(model: &Arc<dyn CausalLm>, compile: Option<Options>, reuse: bool) -> Generator {
    let options = GeneratorOptions { context: 40, compile, reuse, ..GeneratorOptions::default() };
    Generator::new(model.clone(), options).unwrap()
}

/// Tokens that are in every vocabulary here.
fn words(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| 2 + (seed * 37 + at * 29 + at * at * 7) % 90).collect()
}

fn request(max_tokens: usize) -> Request {
    Request { max_tokens, ..Request::default() }
}

fn apart(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.shape(), b.shape());
    let largest = |x: &Tensor| x.abs().unwrap().to_vec::<f32>().unwrap().into_iter().fold(0.0, f32::max);
    largest(&(a - b).unwrap()) / largest(b)
}

/// Eagerly, and compiled in every mode for the first of the models.
fn ways(name: &str) -> Vec<Option<Options>> {
    let modes = if name == MODELS[0] { &Mode::ALL[..] } else { &[Mode::Default][..] };
    let compiled = modes.iter().map(|&mode| Some(Options { mode, ..Options::default() }));
    std::iter::once(None).chain(compiled).collect()
}

#[test]
fn later_turns_are_those_of_a_whole_reading() {
    for name in MODELS {
        let model = model(name);
        for compile in ways(name) {
            let mut talk = generator(&model, compile.clone(), true);
            let mut text = words(1, 12);
            let first = talk.generate(&text, &request(4)).unwrap();
            assert_eq!(first.reused, 0);
            for turn in 2..5 {
                text.extend(&first.ids[..3]);
                text.extend(words(turn, 4));
                // The numbers, then the choices, each as the next turn of its own.
                let mut whole = generator(&model, compile.clone(), false);
                let expected = whole.generate(&text, &request(4)).unwrap();
                let kept = talk.held().iter().zip(&text).take_while(|(a, b)| a == b).count();
                let held = talk.held().to_vec();
                let follows = [(&text[..], &expected.ids[..3])];
                let logits = talk.logits(&follows).unwrap().remove(0);
                let fresh = whole.logits(&follows).unwrap().remove(0);
                let far = apart(&logits, &fresh);
                assert!(far < TOLERANCE, "{name}, turn {turn}: {far:.1e} of the largest logit");
                assert!(kept >= 12 + 7 * (turn as usize - 2) && kept < text.len(), "{kept} of {held:?}");

                let mut talk = generator(&model, compile.clone(), true);
                talk.generate(&text[..text.len() - 4], &request(1)).unwrap();
                let answer = talk.generate(&text, &request(4)).unwrap();
                assert_eq!(answer.ids, expected.ids, "{name}, turn {turn}");
                // Where a bucket would reach beyond the context it begins earlier.
                assert_eq!(answer.reused, (text.len() - 4).min(40 - 16), "{name}, turn {turn}");
            }
        }
    }
}

/// A window of 6 tokens has long lost the beginning: what the last layers see of it is still there for another continuation.
#[test]
fn a_changed_turn_is_read_from_its_change_on() {
    for name in MODELS {
        let model = model(name);
        for compile in [None, Some(Options::default())] {
            let (mut talk, mut whole) =
                (generator(&model, compile.clone(), true), generator(&model, compile.clone(), false));
            let said = [words(1, 24), words(9, 8)].concat();
            talk.generate(&said, &request(4)).unwrap();
            for at in [23, 9, 1, 0] {
                let mut other = said[..28].to_vec();
                other[at] = 95 - other[at] % 40;
                let (got, expected) = (talk.generate(&other, &request(6)), whole.generate(&other, &request(6)));
                let (got, expected) = (got.unwrap(), expected.unwrap());
                // Where a bucket would reach beyond the context it begins earlier.
                let kept = |length: usize| at.min(40 - (length - at).next_power_of_two().max(16));
                assert_eq!((&got.ids, got.reused), (&expected.ids, kept(28)), "{name}, changed at {at}");
                // Back to what was said, so that the next change is one of it.
                assert_eq!(talk.generate(&said, &request(4)).unwrap().reused, kept(32));
            }
        }
    }
}

/// Positions of a Phi-3 turn otherwise in texts beyond its original context, here 16 tokens: a turn that gets there is read
/// whole, one behind it is not, and neither is one that is short again kept from what was long.
#[test]
fn turns_beyond_the_original_context_are_read_whole() {
    let model = model("phi3-longrope");
    for compile in [None, Some(Options::default())] {
        let (mut talk, mut whole) =
            (generator(&model, compile.clone(), true), generator(&model, compile.clone(), false));
        let text = words(3, 24);
        for (length, reused) in [(10, 0), (14, 10), (16, 14), (17, 0), (20, 17), (24, 20), (12, 0), (13, 12)] {
            let (got, expected) =
                (talk.generate(&text[..length], &request(1)), whole.generate(&text[..length], &request(1)));
            let (got, expected) = (got.unwrap(), expected.unwrap());
            assert_eq!((got.ids, got.reused), (expected.ids, reused), "{length} tokens");
        }
        // Over the border token by token, against each text read by itself.
        let rows = talk.logits(&[(&text[..13], &text[13..20])]).unwrap().remove(0);
        for (row, length) in (13..=20).enumerate() {
            let expected = whole.logits(&[(&text[..length], &[])]).unwrap().remove(0);
            let far = apart(&rows.narrow(0, row as i64, 1).unwrap(), &expected);
            assert!(far < TOLERANCE, "{length} tokens: {far:.1e} of the largest logit");
        }
        let answer = talk.generate(&text[..13], &request(9)).unwrap();
        assert_eq!(answer.ids, whole.generate(&text[..13], &request(9)).unwrap().ids);
        assert_eq!(talk.held().len(), 13 + 8);
    }
}

/// The same sizes turn after turn need the same programs, wherever the turn begins.
#[test]
fn turns_need_no_new_programs() {
    let opened = kiln_llm::embedded().unwrap();
    let mut talk =
        opened.generator(GeneratorOptions { context: 256, reuse: true, ..GeneratorOptions::default() }).unwrap();
    let mut text = words(1, 10);
    let (mut made, mut read) = (None, Vec::new());
    for turn in 0..12 {
        let answer = talk.generate(&text, &request(8)).unwrap();
        read.push(text.len() - answer.reused);
        assert_eq!(*made.get_or_insert(talk.compiles()), talk.compiles(), "turn {turn}");
        // What a template puts behind an answer.
        text.extend(answer.ids);
        text.extend(words(turn, 9));
    }
    assert_eq!(talk.compiles(), (1, 1));
    // The last token of an answer is not in the cache: nothing came after it.
    assert_eq!(read, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10]);
    // All of it again has only its last token to read.
    assert_eq!(talk.generate(talk.held().to_vec().as_slice(), &request(1)).unwrap().reused, talk.held().len() - 1);
}

/// However a text ended, what is held is what was read.
#[test]
fn every_end_leaves_a_cache_that_can_go_on() {
    let opened = kiln_llm::embedded().unwrap();
    let options = |reuse| GeneratorOptions { context: 64, reuse, ..GeneratorOptions::default() };
    let mut talk = opened.generator(options(true)).unwrap();
    let mut whole = opened.generator(options(false)).unwrap();
    let begin = [1, 403, 407, 261, 378];
    let all = whole.generate(&begin, &request(30)).unwrap().ids;
    let ends: [(Request, Option<usize>); 5] = [
        (Request { stop_tokens: vec![all[5]], ..request(30) }, None),
        (Request { stop: vec![" named".into()], ..request(30) }, None),
        (request(7), None),
        (request(30), Some(3)),
        (Request::default(), None),
    ];
    for (request_of, break_after) in ends {
        let mut seen = 0;
        let said = talk.generate_with(&begin, &request_of, |_| {
            seen += 1;
            if Some(seen) == break_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let said = said.unwrap();
        assert!(talk.held().starts_with(&begin), "{:?}", talk.held());
        let text = [&begin[..], &said.ids[..said.ids.len().min(20)], &[300, 301]].concat();
        let (got, expected) = (talk.generate(&text, &request(9)).unwrap(), whole.generate(&text, &request(9)).unwrap());
        assert_eq!(got.ids, expected.ids, "after {:?}", said.stop);
        assert!(got.reused >= begin.len() + said.ids.len().min(20) - 1, "{got:?} after {said:?}");
    }
    // Texts beside it, and errors, leave it alone or forget it; neither spoils what follows.
    talk.generate_batch(&[vec![5, 6], vec![7]], &request(3)).unwrap();
    assert!(talk.generate(&[1; 65], &request(3)).is_err());
    let wrong = Request { sampling: kiln_llm::Sampling { top_p: 7.0, ..Default::default() }, ..request(3) };
    assert!(talk.generate(&begin, &wrong).is_err());
    assert_eq!(talk.generate(&begin, &request(30)).unwrap().ids, all);
}

fn story_teller() -> Opened {
    let template = "{% for m in messages %}{% if loop.index0 %}{{ ' ' if m.role == 'user' }}{% endif %}{{ m.content }}{% endfor %}";
    Opened { chat: Some(ChatTemplate::new(template, &[]).unwrap()), ..kiln_llm::embedded().unwrap() }
}

#[test]
fn a_conversation_reads_what_is_new() {
    let opened = story_teller();
    let options = GeneratorOptions { context: 128, ..GeneratorOptions::default() };
    let mut talk = opened.conversation(options.clone()).unwrap();
    let (mut shown, asked) = (String::new(), Request { max_tokens: 12, ..opened.request() });
    let mut say = |words: &str| -> kiln_llm::Result<Generated> {
        shown.clear();
        let answer = talk.say(words, &asked, |piece| {
            shown += piece;
            ControlFlow::Continue(())
        })?;
        assert_eq!(answer.text, shown);
        Ok(answer)
    };
    let first = say("Once upon a time").unwrap();
    let second = say("Then Tom came.").unwrap();
    assert!(first.reused == 0 && second.reused > 5, "{second:?}");
    let messages = talk.messages().clone();
    assert_eq!(messages.len(), 4);
    assert_eq!((messages[1].role.as_str(), messages[1].content.as_str()), ("assistant", first.text.trim()));
    // What a generator without a memory says to the same messages.
    let prompt = opened.chat_prompt(&messages[..3]).unwrap();
    let mut whole = opened.generator(options).unwrap();
    let expected = whole.generate_text_after(&prompt, &asked, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((&second.ids, &second.text), (&expected.ids, &expected.text));

    // A turn too long for the context is an error and no turn.
    let long = "and then ".repeat(60);
    match talk.say(&long, &asked, |_| ControlFlow::Continue(())) {
        Err(Error::PromptTooLong { context: 128, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(talk.messages().len(), 4);
    // One that just fits is answered up to the context's end.
    talk.messages().truncate(2);
    talk.messages().insert(0, Message::new("system", "A story."));
    let mut last = talk.say("Lily was sad.", &request(500), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(last.stop, Stop::Context);
    talk.messages().clear();
    last = talk.say("Once upon a time", &asked, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(last.ids, first.ids);
}

/// A long prompt goes in parts. Called off between two of them it ends there, without a token, and what comes after it is what it
/// would have been: also where the cache holds the beginning of the text already.
#[test]
fn a_text_is_called_off_while_its_prompt_is_read() {
    let model = model("llama");
    for compile in [None, Some(Options::default())] {
        let options =
            GeneratorOptions { context: 64, compile, reuse: true, prefill: 16, ..GeneratorOptions::default() };
        let mut generator = Generator::new(model.clone(), options.clone()).unwrap();
        let prompt = words(3, 60);
        let whole = Generator::new(model.clone(), options).unwrap().generate(&prompt, &request(3)).unwrap();
        for before in [0, 20] {
            if before > 0 {
                generator.generate(&prompt[..before], &request(1)).unwrap();
            }
            let cancel = Cancel::default();
            let (asked, own) = (cancel.clone(), std::thread::current().id());
            // Whatever runs first is not the last part.
            let listening = kiln::runtime::event::listen(&[kiln::runtime::event::Category::Run], move |_| {
                if std::thread::current().id() == own {
                    asked.ask();
                }
            });
            let called_off = Request { cancel: Some(cancel), ..request(3) };
            let text = generator.generate(&prompt, &called_off).unwrap();
            drop(listening);
            assert_eq!((text.stop, text.ids.len()), (Stop::Asked, 0), "{before}");
            assert!(generator.held().len() <= before, "{:?}", generator.held());
            assert_eq!(generator.generate(&prompt, &request(3)).unwrap().ids, whole.ids, "{before}");
        }
    }
}
