//! A beam search as a `while_loop`: the number of steps depends on the data.

use kiln::{DType, Device, Result, Tensor};

/// Words of the table; word 0 ends a sentence.
pub const WORDS: i64 = 64;
const BEAMS: i64 = 4;
const LONGEST: i64 = 24;

/// Sentences so far, their scores, the last word of each, which have ended, and the number of steps.
type State = (Tensor, Tensor, Tensor, Tensor, Tensor);

/// The search from a first word over a table of what follows what; sentences and their scores.
pub fn search(table: &Tensor) -> Result<impl Fn(&Tensor) -> Result<(Tensor, Tensor)> + use<>> {
    let table = table.mul(2.0)?;
    let search = kiln::while_loop(goes_on, move |state: &State| step(&table, state));
    Ok(move |word: &Tensor| {
        let (sentences, scores, ..) = search.call(first(word)?)?;
        Ok((sentences, scores))
    })
}

fn count_to(end: i64) -> Result<Tensor> {
    Tensor::arange(end, DType::I64, Device::Cpu)
}

/// One sentence, and others behind it.
fn first(word: &Tensor) -> Result<State> {
    let sentences = Tensor::zeros((BEAMS as usize, LONGEST as usize), DType::I64, Device::Cpu)?;
    let scores = count_to(BEAMS)?.eq(0)?.where_(0.0f32, f32::NEG_INFINITY)?;
    let none = Tensor::zeros(BEAMS as usize, DType::Bool, Device::Cpu)?;
    Ok((sentences, scores, word.expand(BEAMS as usize)?, none, Tensor::zeros((), DType::I64, Device::Cpu)?))
}

/// Every word after every sentence, of which the best stay. A sentence that has ended goes on with nothing, at no cost.
fn step(table: &Tensor, (sentences, scores, last, ended, count): &State) -> Result<State> {
    let next = table.index_select(0, last)?.log_softmax(-1)?;
    let nothing = count_to(WORDS)?.eq(0)?.where_(0.0f32, f32::NEG_INFINITY)?;
    let next = ended.unsqueeze(1)?.where_(nothing.unsqueeze(0)?, next)?;
    let all = scores.unsqueeze(1)?.add(next)?.reshape((BEAMS * WORDS) as usize)?;
    let (scores, places) = all.topk(BEAMS as usize, 0, true)?;
    let (parents, chosen) = (places.div_floor(WORDS)?, places.remainder(WORDS)?);
    let here = count_to(LONGEST)?.eq(count)?.unsqueeze(0)?;
    let sentences = here.where_(chosen.unsqueeze(1)?, sentences.index_select(0, &parents)?)?;
    let ended = ended.index_select(0, &parents)?.logical_or(&chosen.eq(0)?)?;
    Ok((sentences, scores, chosen, ended, count.add(1)?))
}

/// Until the best sentence has ended.
fn goes_on((_, _, _, ended, count): &State) -> Result<Tensor> {
    ended.select(0, 0)?.logical_not()?.logical_and(&count.lt(LONGEST)?)
}
