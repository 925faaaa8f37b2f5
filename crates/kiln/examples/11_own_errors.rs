//! A compiled function may return an error type of its own: `own_error` around it, and calls return that type.

use kiln::{DType, Device, Tensor, own_error};
use std::fmt;

/// Why a batch is not taken.
#[derive(Debug)]
enum Refused {
    TooLong { tokens: usize },
    NotFinite { loss: f32 },
    Kiln(kiln::Error),
}

impl From<kiln::Error> for Refused {
    fn from(error: kiln::Error) -> Refused {
        Refused::Kiln(error)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::TooLong { tokens } => write!(f, "{tokens} tokens are too many"),
            Refused::NotFinite { loss } => write!(f, "the loss is {loss}"),
            Refused::Kiln(error) => write!(f, "{error}"),
        }
    }
}

fn loss(x: &Tensor) -> Result<Tensor, Refused> {
    let tokens = x.shape()[0];
    if tokens > 512 {
        return Err(Refused::TooLong { tokens });
    }
    let loss = x.mul(x)?.mean(..)?;
    let value = loss.item::<f32>()?;
    if !value.is_finite() {
        return Err(Refused::NotFinite { loss: value });
    }
    Ok(loss)
}

fn main() -> Result<(), Refused> {
    let fast = kiln::compile(own_error(loss));
    println!("{}", fast.call(&Tensor::ones(16, DType::F32, Device::Cpu)?)?.item::<f32>()?);
    // An error is no program: the function is called again, and says what is wrong with these arguments.
    for (tokens, value) in [(1000, 1.0), (2000, 1.0), (16, f32::INFINITY)] {
        match fast.call(&Tensor::full(tokens, value, DType::F32, Device::Cpu)?) {
            Err(refused) => println!("{refused}"),
            Ok(loss) => panic!("{loss:?} was not refused"),
        }
    }
    println!("{:?}", fast.stats());
    Ok(())
}
