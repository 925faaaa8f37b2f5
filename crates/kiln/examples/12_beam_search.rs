//! Loops that stay loops: a beam search whose number of steps depends on the data is one program, and so is a recurrent network of any length.
//! What a Rust `while` would read at every step, `while_loop` keeps in the graph.

use kiln::{DType, Device, Generator, Result, Tensor};

const WORDS: usize = 12;
const BEAMS: usize = 3;
const LONGEST: usize = 10;
/// The word that ends a sentence.
const END: i64 = 0;

/// Sentences so far, their scores, the last word of each, which have ended, and the number of steps.
type State = (Tensor, Tensor, Tensor, Tensor, Tensor);

/// One step: every word after every sentence, of which the best stay.
fn step(scores_of_words: &Tensor, (sentences, scores, last, ended, count): &State) -> Result<State> {
    let next = scores_of_words.index_select(0, last)?.log_softmax(-1)?;
    // A sentence that has ended goes on with nothing, at no cost.
    let words = Tensor::arange(WORDS as i64, DType::I64, Device::Cpu)?;
    let nothing = words.eq(END)?.where_(0.0f32, f32::NEG_INFINITY)?;
    let next = ended.unsqueeze(1)?.where_(nothing.unsqueeze(0)?, next)?;
    let all = scores.unsqueeze(1)?.add(next)?.reshape(BEAMS * WORDS)?;
    let (scores, places) = all.topk(BEAMS, 0, true)?;
    let (parents, chosen) = (places.div_floor(WORDS as i64)?, places.remainder(WORDS as i64)?);
    let here = Tensor::arange(LONGEST as i64, DType::I64, Device::Cpu)?.eq(count)?.unsqueeze(0)?;
    let sentences = here.where_(chosen.unsqueeze(1)?, sentences.index_select(0, &parents)?)?;
    let ended = ended.index_select(0, &parents)?.logical_or(&chosen.eq(END)?)?;
    Ok((sentences, scores, chosen, ended, count.add(1)?))
}

/// Before the first step there is one sentence: the others are behind it.
fn first(word: &Tensor) -> Result<State> {
    let sentences = Tensor::zeros((BEAMS, LONGEST), DType::I64, Device::Cpu)?;
    let is_first = Tensor::arange(BEAMS as i64, DType::I64, Device::Cpu)?.eq(0)?;
    let scores = is_first.where_(0.0f32, f32::NEG_INFINITY)?;
    let none = Tensor::zeros(BEAMS, DType::Bool, Device::Cpu)?;
    Ok((sentences, scores, word.expand(BEAMS)?, none, Tensor::zeros((), DType::I64, Device::Cpu)?))
}

/// As long as the best sentence has not ended: the others only get worse.
fn goes_on((_, _, _, ended, count): &State) -> Result<Tensor> {
    ended.select(0, 0)?.logical_not()?.logical_and(&count.lt(LONGEST as i64)?)
}

fn main() -> Result<()> {
    let table = Generator::new(7).randn((WORDS, WORDS), DType::F32, Device::Cpu)?.mul(2.0)?;
    // Most words end a sentence now and then.
    let ends = Tensor::arange(WORDS as i64, DType::I64, Device::Cpu)?.eq(END)?;
    let table = table.add(ends.where_(1.5f32, 0.0f32)?)?;
    let own = table.clone();
    let search = kiln::while_loop(goes_on, move |state: &State| step(&own, state));
    let fast = kiln::compile(move |word: &Tensor| {
        let (sentences, scores, _, _, count) = search.call(first(word)?)?;
        Ok::<_, kiln::Error>((sentences, scores, count))
    });
    for word in 1..WORDS as i64 {
        let word = Tensor::new([word], Device::Cpu)?;
        let (sentences, scores, count) = fast.call(&word)?;
        // The same, with a loop that reads at every step.
        let mut state = first(&word)?;
        while goes_on(&state)?.item::<bool>()? {
            state = step(&table, &state)?;
        }
        assert_eq!(sentences.to_vec::<i64>()?, state.0.to_vec::<i64>()?);
        assert_eq!(count.item::<i64>()?, state.4.item::<i64>()?);
        let best = sentences.select(0, 0)?.to_vec::<i64>()?;
        println!("{} steps, {:6.2}: {best:?}", count.item::<i64>()?, scores.to_vec::<f32>()?[0]);
    }
    let stats = fast.stats();
    println!("{} program, {} breaks", stats.programs, stats.breaks);
    assert_eq!((stats.programs, stats.breaks), (1, 0));
    Ok(())
}
