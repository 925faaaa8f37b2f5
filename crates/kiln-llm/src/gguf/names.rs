//! The names that GGUF files and Hugging Face's checkpoints have for the same tensors.

const WHOLE: &[(&str, &str)] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Of a layer.
const PARTS: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Hugging Face's name of a tensor; its own if there is none.
pub(super) fn renamed(name: &str) -> String {
    if let Some((_, whole)) = WHOLE.iter().find(|(own, _)| *own == name) {
        return (*whole).into();
    }
    let parts: Vec<&str> = name.split('.').collect();
    let &["blk", layer, part, kind] = &parts[..] else { return name.into() };
    let part = PARTS.iter().find(|(own, _)| *own == part).map_or(part, |(_, other)| other);
    format!("model.layers.{layer}.{part}.{kind}")
}

/// The name that the file has for what Hugging Face's checkpoints call so.
pub(super) fn original(name: &str) -> String {
    if let Some((own, _)) = WHOLE.iter().find(|(_, whole)| *whole == name) {
        return (*own).into();
    }
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, (part, kind))) = layer.and_then(|(layer, rest)| Some((layer, rest.rsplit_once('.')?))) else {
        return name.into();
    };
    let part = PARTS.iter().find(|(_, other)| *other == part).map_or(part, |(own, _)| own);
    format!("blk.{layer}.{part}.{kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        for name in
            ["token_embd.weight", "output.weight", "blk.3.attn_q.bias", "blk.12.ffn_down.weight", "rope_freqs.weight"]
        {
            assert_eq!(original(&renamed(name)), name);
        }
        assert_eq!(renamed("blk.0.attn_output.weight"), "model.layers.0.self_attn.o_proj.weight");
        assert_eq!(original("model.layers.0.ffn_gate_exps.weight"), "blk.0.ffn_gate_exps.weight");
    }
}
