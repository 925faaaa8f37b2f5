//! `#[derive(Bundle)]` on every kind of type, through `compile`.

use kiln::{Bundle, DType, Device, Leaf, Result, Tensor};
use std::collections::BTreeMap;

#[derive(Bundle, Clone)]
struct Named {
    tokens: Tensor,
    mask: Option<Tensor>,
    scale: f64,
    parts: Vec<Tensor>,
    r#type: String,
}

#[derive(Bundle, Clone)]
struct Pair<A, B>(A, B);

#[derive(Bundle, Clone)]
struct Grid<T: Clone, const N: usize>
where
    T: std::fmt::Debug,
{
    rows: [T; N],
}

#[derive(Bundle, Clone, Debug, PartialEq)]
struct Nothing;

#[derive(Bundle, Clone)]
enum Mask {
    None,
    Causal { offset: i64 },
    Given(Tensor),
    Both(Tensor, Tensor),
}

#[derive(Bundle)]
enum Never {}

#[derive(Bundle)]
enum Tree {
    Leaf(Tensor),
    Fork(Vec<Tree>),
}

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), Device::Cpu).unwrap()
}

fn shown(bundle: &impl Bundle) -> Vec<String> {
    let mut lines = Vec::new();
    bundle.leaves(&mut |leaf| {
        lines.push(match leaf {
            Leaf::Tensor(t) => format!("{:?}", t.shape()),
            Leaf::Text(v) => v.to_owned(),
            Leaf::Parts(v) => format!("{v} parts"),
            plain => format!("{plain:?}"),
        });
    });
    lines
}

#[test]
fn leaves_are_the_fields_in_order() {
    let named = Named {
        tokens: vector(&[1.]),
        mask: Some(vector(&[1., 2.])),
        scale: 0.5,
        parts: vec![vector(&[]), vector(&[1., 2., 3.])],
        r#type: "causal".into(),
    };
    assert_eq!(shown(&named), ["[1]", "Bool(true)", "[2]", "Float(0.5)", "2 parts", "[0]", "[3]", "causal"]);
    assert_eq!(shown(&Pair(3u8, Pair(true, vector(&[1.])))), ["Int(3)", "Bool(true)", "[1]"]);
    assert_eq!(shown(&Grid { rows: [1i64, 2] }), ["Int(1)", "Int(2)"]);
    assert!(shown(&Nothing).is_empty());
}

#[test]
fn a_variant_is_a_leaf() {
    assert_eq!(shown(&Mask::None), ["None"]);
    assert_eq!(shown(&Mask::Causal { offset: 2 }), ["Causal", "Int(2)"]);
    assert_eq!(shown(&Mask::Given(vector(&[1.]))), ["Given", "[1]"]);
    assert_eq!(shown(&Mask::Both(vector(&[1.]), vector(&[]))), ["Both", "[1]", "[0]"]);
    assert!(shown(&None::<Never>) == ["Bool(false)"]);
}

#[test]
fn tensors_are_mapped_in_the_order_of_the_leaves() {
    let tree = Tree::Fork(vec![Tree::Leaf(vector(&[1.])), Tree::Fork(vec![Tree::Leaf(vector(&[2., 3.]))])]);
    let mut shapes = Vec::new();
    let mapped = tree.map_tensors(&mut |t| {
        shapes.push(t.shape().to_vec());
        vector(&[9., 9., 9.])
    });
    assert_eq!(shapes, [vec![1], vec![2]]);
    assert_eq!(shown(&mapped), ["Fork", "2 parts", "Leaf", "[3]", "Fork", "1 parts", "Leaf", "[3]"]);
    assert_eq!(Nothing.map_tensors(&mut Tensor::clone), Nothing);
}

#[test]
fn a_changed_variant_or_value_compiles_again() -> Result<()> {
    let fast = kiln::compile(|pair: &Pair<Tensor, Mask>| -> Result<Pair<Tensor, BTreeMap<String, Tensor>>> {
        let Pair(x, mask) = pair;
        let y = match mask {
            Mask::None => x.clone(),
            Mask::Causal { offset } => x.add(*offset)?,
            Mask::Given(by) => x.mul(by)?,
            Mask::Both(by, more) => x.mul(by)?.add(more)?,
        };
        Ok(Pair(y.add(1.0)?, BTreeMap::from([("sum".to_owned(), y.sum(..)?)])))
    });
    let x = vector(&[1., 2.]);
    let run = |mask: Mask| -> Result<(Vec<f32>, f32)> {
        let Pair(y, more) = fast.call(&Pair(x.clone(), mask))?;
        Ok((y.to_vec()?, more["sum"].item()?))
    };
    assert_eq!(run(Mask::None)?, (vec![2., 3.], 3.));
    assert_eq!(run(Mask::Causal { offset: 3 })?, (vec![5., 6.], 9.));
    assert_eq!(run(Mask::Causal { offset: 4 })?, (vec![6., 7.], 11.));
    assert_eq!(run(Mask::Given(vector(&[2., 3.])))?, (vec![3., 7.], 8.));
    assert_eq!(run(Mask::Both(vector(&[2., 3.]), vector(&[1., 1.])))?, (vec![4., 8.], 10.));
    assert_eq!(run(Mask::Given(vector(&[0., 1.])))?, (vec![1., 3.], 2.));
    assert_eq!(fast.stats().compiles, 5);
    Ok(())
}

#[test]
fn a_bundle_may_hold_bundles_of_any_type() -> Result<()> {
    let fast = kiln::compile(|grid: &Grid<i64, 2>| {
        Tensor::full(grid.rows[0] as usize, grid.rows[1], DType::I64, Device::Cpu)?.cumsum(0)
    });
    assert_eq!(fast.call(&Grid { rows: [3, 2] })?.to_vec::<i64>()?, [2, 4, 6]);
    Ok(())
}
