//! Events as a user hears them: `KILN_LOG`, several listeners at once, and what each category says.

use kiln::runtime::event::{self, Category, Event};
use kiln::{DType, Device, Tensor, compile};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// What one listener heard on this thread while `work` was done.
fn heard(categories: &[Category], work: impl FnOnce()) -> Vec<(Category, String)> {
    let events: Arc<Mutex<Vec<(Category, String)>>> = Arc::default();
    let (into, own) = (events.clone(), std::thread::current().id());
    let listening = event::listen(categories, move |event: &Event| {
        if std::thread::current().id() == own {
            into.lock().unwrap().push((event.category(), event.to_string()));
        }
    });
    work();
    drop(listening);
    events.lock().unwrap().clone()
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(shape.to_vec(), DType::F32, Device::Cpu).unwrap()
}

#[test]
fn each_category_is_heard_when_its_thing_happens() {
    let events = heard(&Category::ALL, || {
        let fast = compile(|x: &Tensor| {
            let y = x.mul(1.75)?.sin()?.sum(-1)?;
            if y.amax(..)?.item::<f32>()? > 1e6 { y.exp() } else { y.cos() }
        });
        fast.call(&ones(&[13, 29])).unwrap();
        fast.call(&ones(&[13, 29]).to_dtype(DType::F64).unwrap()).unwrap();
    });
    let of = |category: Category| -> Vec<&String> {
        events.iter().filter(|(c, _)| *c == category).map(|(_, text)| text).collect()
    };
    let line = |texts: Vec<&String>, part: &str| {
        assert!(texts.iter().any(|text| text.contains(part)), "'{part}' in {texts:#?}");
    };
    line(of(Category::Breaks), "events.rs:");
    line(of(Category::Breaks), "where_");
    line(of(Category::Guards), "f32[13, 29]");
    line(of(Category::Recompiles), "is f64[13, 29]");
    line(of(Category::Recompiles), "to_dtype");
    line(of(Category::Fusion), "one kernel of");
    line(of(Category::Kernels), "built a program of");
    line(of(Category::Run), "ran ");
}

#[test]
fn listeners_come_and_go_and_do_not_disturb_each_other() {
    let (outer, inner) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    let own = std::thread::current().id();
    let count = |into: &Arc<Mutex<usize>>| {
        let into = into.clone();
        move |_: &Event| {
            if std::thread::current().id() == own {
                *into.lock().unwrap() += 1;
            }
        }
    };
    let first = event::listen(&[Category::Run], count(&outer));
    ones(&[3]).exp().unwrap();
    let second = event::listen(&[Category::Run], count(&inner));
    ones(&[3]).exp().unwrap();
    drop(second);
    ones(&[3]).exp().unwrap();
    drop(first);
    ones(&[3]).exp().unwrap();
    let (outer, inner) = (*outer.lock().unwrap(), *inner.lock().unwrap());
    assert!(outer > inner && inner > 0, "{outer} and {inner}");
    assert_eq!(outer % 3, 0, "all of the first three, none of the last");
}

#[test]
#[ignore = "run by the test below, in a process of its own"]
fn talk() {
    let listening = event::listen(&[Category::Kernels], |_| ());
    let fast = compile(|x: &Tensor| x.mul(3.25)?.exp());
    fast.call(&ones(&[77])).unwrap();
    fast.call(&ones(&[77]).to_dtype(DType::F64).unwrap()).unwrap();
    drop(listening);
}

fn said(log: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["talk", "--exact", "--ignored", "--nocapture"]).env("KILN_LOG", log).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_log_prints_what_is_asked_for_a_line_each_while_others_listen() {
    let text = said("recompiles,guards");
    assert!(text.contains("kiln recompiles: recompiling: ") && text.contains("kiln guards: a program for "), "{text}");
    assert!(text.contains("kiln recompiles: a function had ") && text.contains(" × "), "{text}");
    assert!(!text.contains("kiln kernels:") && !text.contains("kiln run:"), "{text}");
    let all = said("all");
    for category in ["guards", "recompiles", "fusion", "kernels", "run"] {
        assert!(all.contains(&format!("kiln {category}: ")), "{category} in\n{all}");
    }
    assert!(said("compile").contains("kiln kernels: "));
    let wrong = said("kernles");
    assert!(wrong.contains("KILN_LOG=kernles is not understood: it takes all, or some of breaks, guards, "), "{wrong}");
}
