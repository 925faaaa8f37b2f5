//! Configurations are foreign input: what is not supported is refused by name, and what is said in an older way is understood.

use kiln_llm::config::{
    Fields, Gemma3Config, Gpt2Config, GptNeoxConfig, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config,
    RopeScaling,
};
use serde_json::{Value, json};

fn fields(value: Value) -> Fields {
    Fields::parse(value.to_string().as_bytes(), "folder/config.json").unwrap()
}

fn llama(value: Value) -> String {
    LlamaConfig::from_fields(&fields(value)).unwrap_err().to_string()
}

#[test]
fn what_is_not_supported_is_named() {
    let cases = [
        (json!({"model_type": "gemma2"}), "folder/config.json: models of type 'gemma2' are not supported"),
        (json!({"hidden_act": "xielu"}), "folder/config.json: hidden_act: 'xielu' is not supported"),
        (json!({"hidden_act": "relu"}), "hidden_act: Relu is not supported for this model type, Silu is"),
        (json!({"num_key_value_heads": 5}), "num_key_value_heads: 5 does not divide 32 heads"),
        (json!({"num_attention_heads": 0}), "num_attention_heads: must not be 0"),
        (json!({"num_hidden_layers": -1}), "num_hidden_layers: -1 is no size"),
        (json!({"vocab_size": 1e30}), "vocab_size: 1e+30 is no size"),
        (json!({"head_dim": 3}), "head_dim: 3 is odd"),
        (json!({"rms_norm_eps": -1e-6}), "rms_norm_eps: -0.000001 is negative"),
        (json!({"rope_theta": 0}), "rope_theta: 0 is no base above 1"),
        (json!({"rope_scaling": {"rope_type": "mrope"}}), "rope_scaling: rope type 'mrope' is not supported"),
        (
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 8}}),
            "rope_parameters: low_freq_factor is missing",
        ),
        (json!({"rope_scaling": {"type": "linear", "factor": -2}}), "rope_scaling: factor: -2 is not positive"),
        (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling: factor is missing"),
        (json!({"rope_scaling": {"type": "dynamic"}}), "rope_scaling: factor is missing"),
        (json!({"rope_scaling": 3}), "rope_scaling: 3 is no object"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor: not supported for this model type"),
        (json!({"partial_rotary_factor": 1.5}), "partial_rotary_factor: 1.5 of a head of 128 elements"),
        (json!({"quantization_config": {"quant_method": "awq"}}), "weights quantised by 'awq' are not supported"),
        (json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping: scores of attention with a soft limit"),
        (json!({"is_encoder_decoder": true}), "is_encoder_decoder: only causal decoders are supported"),
    ];
    for (value, expected) in cases {
        let message = llama(value);
        assert!(message.contains(expected), "{message}\nlacks\n{expected}");
    }
}

#[test]
fn phi3_checks_the_factors_of_each_pair() {
    let phi = |scaling: Value| {
        let all = json!({"model_type": "phi3", "hidden_size": 16, "num_attention_heads": 2, "rope_scaling": scaling});
        Phi3Config::from_fields(&fields(all))
    };
    let good = json!({"type": "su", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3, 4.5]});
    let config = phi(good.clone()).unwrap();
    let RopeScaling::LongRope { long_factor, original_max_position_embeddings, .. } = config.rope.scaling else {
        panic!("{:?}", config.rope.scaling)
    };
    assert_eq!((long_factor, original_max_position_embeddings), (vec![1.0, 2.0, 3.0, 4.5], 4096));
    // The first files called it yarn.
    let mut older = good;
    older["type"] = "yarn".into();
    assert!(matches!(phi(older).unwrap().rope.scaling, RopeScaling::LongRope { .. }));
    for (scaling, expected) in [
        (json!({"type": "longrope", "short_factor": [1, 1, 1, 1]}), "long_factor is missing or no list"),
        (
            json!({"type": "longrope", "short_factor": [1], "long_factor": [1]}),
            "short_factor has 1 factors for 4 pairs",
        ),
        (json!({"type": "longrope", "short_factor": [0, 1, 1, 1]}), "short_factor holds something"),
        (json!({"type": "longrope", "long_mscale": 1.1}), "long_mscale is not supported"),
    ] {
        let message = phi(scaling).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

/// Yarn as Qwen2.5's files ask for it: fast pairs stay, slow ones are divided.
#[test]
fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
    let config = json!({
        "model_type": "qwen2", "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "rope_theta": 1e6,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    });
    let rope = Qwen2Config::from_fields(&fields(config)).unwrap().llama.rope();
    let frequencies = rope.frequencies(false);
    let plain = |i: usize| 1e6f64.powf(-(i as f64) / 64.0);
    assert_eq!(frequencies[0], 1.0);
    assert!((frequencies[63] - plain(63) / 4.0).abs() < 1e-15);
    let middle = frequencies[30] / plain(30);
    assert!(middle > 0.26 && middle < 0.99, "{middle}");
    assert!((rope.attention_factor() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
}

#[test]
fn windows_are_those_of_the_file() {
    let mistral = |value: Value| MistralConfig::from_fields(&fields(value)).map(|config| config.sliding_window);
    assert_eq!(mistral(json!({})).unwrap(), Some(4096));
    assert_eq!(mistral(json!({"sliding_window": null})).unwrap(), None);
    assert!(mistral(json!({"sliding_window": 0})).is_err());

    let qwen = json!({"num_hidden_layers": 4, "use_sliding_window": true, "sliding_window": 7, "max_window_layers": 2});
    let windows = Qwen2Config::from_fields(&fields(qwen)).unwrap().windows;
    assert_eq!(windows, [None, None, Some(7), Some(7)]);
    // A window that is not used.
    let qwen = json!({"num_hidden_layers": 2, "sliding_window": 7, "max_window_layers": 0});
    assert_eq!(Qwen3Config::from_fields(&fields(qwen)).unwrap().windows, [None, None]);
    let chunked = json!({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]});
    let message = Qwen3Config::from_fields(&fields(chunked)).unwrap_err().to_string();
    assert!(message.contains("layer_types: \"chunked_attention\" is not supported"), "{message}");
    let short = json!({"num_hidden_layers": 2, "layer_types": ["full_attention"]});
    let message = Qwen3Config::from_fields(&fields(short)).unwrap_err().to_string();
    assert!(message.contains("layer_types: no list of the types of 2 layers"), "{message}");
}

/// The text part of a folder that also sees images, as its makers published it: most sizes are the defaults.
#[test]
fn gemma3_with_images_has_a_text_part() {
    let config = json!({
        "model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152},
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024
        }
    });
    let config = Gemma3Config::from_fields(&fields(config)).unwrap();
    assert_eq!((config.llama.vocab_size, config.llama.head_dim, config.llama.num_key_value_heads), (262_208, 256, 4));
    assert_eq!(config.llama.eos_token_ids, [1, 106]);
    assert_eq!(config.windows.iter().filter(|window| window.is_none()).count(), 5);
    assert_eq!((config.local_rope.theta, &config.local_rope.scaling), (1e4, &RopeScaling::None));
    assert_eq!((config.global_rope.theta, &config.global_rope.scaling), (1e6, &RopeScaling::Linear { factor: 8.0 }));
    let both = json!({"model_type": "gemma3_text", "use_bidirectional_attention": true});
    assert!(Gemma3Config::from_fields(&fields(both)).unwrap_err().to_string().contains("only causal decoders"));
}

#[test]
fn older_models_check_their_heads() {
    let message = Gpt2Config::from_fields(&fields(json!({"n_embd": 10, "n_head": 3}))).unwrap_err().to_string();
    assert!(message.contains("n_head: 3 heads do not divide a width of 10"), "{message}");
    let neox = json!({"hidden_size": 12, "num_attention_heads": 5});
    assert!(GptNeoxConfig::from_fields(&fields(neox)).is_err());
    let odd = json!({"hidden_size": 24, "num_attention_heads": 2, "rotary_pct": 0.25});
    let message = GptNeoxConfig::from_fields(&fields(odd)).unwrap_err().to_string();
    assert!(message.contains("0.25 of a head of 12 elements is no even part of it"), "{message}");
}
