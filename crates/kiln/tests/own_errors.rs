//! Compiled functions with an error type of their own: whatever they return comes back as it is, at every call.

use kiln::{Compiled, DType, Device, Error, Options, Stance, Tensor, Var, own_error};
use std::cell::Cell;
use std::rc::Rc;

#[derive(Debug, PartialEq)]
enum Refused {
    TooLong(usize),
    Negative { sum: f32 },
    Kiln(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Kiln(error.to_string())
    }
}

fn ones(n: usize) -> Tensor {
    Tensor::ones(n, DType::F32, Device::Cpu).unwrap()
}

fn doubled(x: &Tensor) -> Result<Tensor, Refused> {
    if x.shape()[0] > 8 {
        return Err(Refused::TooLong(x.shape()[0]));
    }
    Ok(x.add(x)?)
}

/// Which way it goes depends on elements: its graph breaks.
fn rooted(x: &Tensor) -> Result<Tensor, Refused> {
    let sum = x.sum(..)?.item::<f32>()?;
    if sum < 0.0 {
        return Err(Refused::Negative { sum });
    }
    Ok(x.sqrt()?)
}

#[test]
fn an_error_comes_back_at_every_call_and_leaves_no_program() {
    let fast: Compiled<_, Tensor, Tensor, Refused> = kiln::compile(own_error(doubled));
    for _ in 0..3 {
        assert_eq!(fast.call(&ones(9)).unwrap_err(), Refused::TooLong(9));
        assert_eq!(fast.call(&ones(2)).unwrap().to_vec::<f32>().unwrap(), [2.0, 2.0]);
    }
    assert_eq!((fast.programs().len(), fast.stats().compiles, fast.stats().hits), (1, 1, 2));
    assert_eq!(fast.warm_up([&ones(20)]).unwrap_err(), Refused::TooLong(20));
    assert_eq!(fast.explain(&ones(30)).unwrap_err(), Refused::TooLong(30));
    assert_eq!(fast.verify(&ones(31)).unwrap_err(), Refused::TooLong(31));
    assert!(fast.explain(&ones(2)).is_ok());
}

#[test]
fn an_error_after_a_break_is_of_this_calls_elements() {
    let fast = kiln::compile(own_error(rooted));
    let of = |v: f32| Tensor::full(4, v, DType::F32, Device::Cpu).unwrap();
    for _ in 0..3 {
        assert_eq!(fast.call(&of(-1.0)).unwrap_err(), Refused::Negative { sum: -4.0 });
        assert_eq!(fast.call(&of(4.0)).unwrap().to_vec::<f32>().unwrap(), [2.0; 4]);
        assert_eq!(fast.call(&of(-2.0)).unwrap_err(), Refused::Negative { sum: -8.0 });
    }
}

#[test]
fn errors_of_kiln_are_converted() {
    // Of an operation, of an option, and of a stance.
    let fast = kiln::compile(own_error(|x: &Tensor| Ok::<_, Refused>(x.reshape([3, 3])?)));
    let Refused::Kiln(text) = fast.call(&ones(4)).unwrap_err() else { panic!("not of Kiln") };
    assert!(text.contains("reshape"), "{text}");
    let options = Options { fullgraph: true, ..Options::default() };
    let fast = kiln::compile_with(own_error(rooted), options);
    let Refused::Kiln(text) = fast.call(&ones(4)).unwrap_err() else { panic!("not of Kiln") };
    assert!(text.contains("reads a tensor's element"), "{text}");
    let fast = kiln::compile(own_error(doubled));
    let _stance = kiln::set_stance(Stance::FailOnRecompile);
    assert!(matches!(fast.call(&ones(4)), Err(Refused::Kiln(_))));
}

#[test]
fn eager_and_nested_calls_return_the_same_errors() {
    let fast = kiln::compile_with(own_error(doubled), Options { disable: true, ..Options::default() });
    assert_eq!(fast.call(&ones(9)).unwrap_err(), Refused::TooLong(9));
    let inner = kiln::compile(own_error(doubled));
    let outer = kiln::compile(own_error(move |x: &Tensor| match inner.call(x) {
        Err(Refused::TooLong(n)) => Err(Refused::TooLong(n + 1)),
        other => other,
    }));
    assert_eq!(outer.call(&ones(9)).unwrap_err(), Refused::TooLong(10));
    assert_eq!(outer.call(&ones(1)).unwrap().to_vec::<f32>().unwrap(), [2.0]);
}

/// An error need be neither `Send` nor an `std::error::Error`.
#[test]
fn any_type_that_kilns_errors_convert_to_will_do() {
    let fast = kiln::compile(own_error(|x: &Tensor| -> Result<Tensor, Box<dyn std::error::Error>> {
        if x.rank() == 0 {
            Err("a scalar")?
        }
        Ok(x.neg()?)
    }));
    let scalar = Tensor::full((), 1.0, DType::F32, Device::Cpu).unwrap();
    assert_eq!(fast.call(&scalar).unwrap_err().to_string(), "a scalar");
    assert!(fast.call(&ones(2)).is_ok());

    struct Local(Rc<Cell<u32>>);
    impl From<Error> for Local {
        fn from(_: Error) -> Local {
            Local(Rc::new(Cell::new(0)))
        }
    }
    let fast = kiln::compile(own_error(|_: &Tensor| Err::<Tensor, _>(Local(Rc::new(Cell::new(7))))));
    assert_eq!(fast.call(&ones(1)).err().map(|local| local.0.get()), Some(7));
}

/// What a function did before an element that it read made it fail was done, as in eager code.
#[test]
fn updates_before_the_element_that_fails_are_kept() {
    let step = |v: Var| {
        move |x: &Tensor| {
            v.set(&v.get().add(x)?)?;
            let sum = v.get().sum(..)?.item::<f32>()?;
            if sum > 2.0 { Err(Refused::Negative { sum }) } else { Ok(v.get()) }
        }
    };
    let (eager, compiled) = (Var::new(&ones(1)), Var::new(&ones(1)));
    let (plain, fast) = (step(eager.clone()), kiln::compile(own_error(step(compiled.clone()))));
    for _ in 0..3 {
        let ends = |r: Result<Tensor, Refused>| r.map(|y| y.to_vec::<f32>().unwrap());
        assert_eq!(ends(plain(&ones(1))), ends(fast.call(&ones(1))));
        assert_eq!(eager.get().to_vec::<f32>().unwrap(), compiled.get().to_vec::<f32>().unwrap());
    }
}
