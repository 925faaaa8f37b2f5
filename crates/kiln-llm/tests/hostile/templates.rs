//! Templates are bounded in steps, bytes and depth, in folders and in GGUF files.

use super::soon;
use kiln_llm::{ChatTemplate, Error, Limit, Message, TemplateError};

/// What a template gives for a short conversation.
fn render(source: &str) -> Result<String, Error> {
    let case = source.to_owned();
    soon(source, move || {
        ChatTemplate::new(&case, &[])?.render(&[Message::new("user", "hello"), Message::new("assistant", "hi")], true)
    })
}

fn limit(source: &str) -> Limit {
    match render(source) {
        Err(Error::Template { origin, cause }) => match *cause {
            TemplateError::Limit { limit, line } => {
                assert!(origin == "chat template" && line >= 1, "{origin}, line {line}");
                limit
            }
            other => panic!("{source:.200}: {other}"),
        },
        Err(other) => panic!("{source:.200}: {other}"),
        Ok(text) => panic!("{source:.200}: {} bytes of text", text.len()),
    }
}

/// One step each makes more text or items than there may be.
#[test]
fn one_step_cannot_make_a_text_of_any_length() {
    for source in [
        "{{ '%99999999999d'|format(1) }}",
        "{{ '%.99999999999s%99999999999s'|format('a', 'b') }}",
        "{{ '%099999999999d' % 1 }}",
        "{{ '%*d' % (99999999999, 1) }}",
        "{{ '%-99999999999s|' % 'a' }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:{}}'.format('a', 9999999999) }}",
        "{{ '{:0^99999999999999999999999}'.format('x') }}",
        "{{ '{:=+9999999999d}'.format(1) }}",
        "{{ 'x\ny'|indent(10000000000) }}",
        "{{ 'x\ny'|indent('a' * 60000000) }}",
        "{{ 'x'|center(10000000000) }}",
        "{{ 'x'.center(10000000000) }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ 'x'.rjust(10000000000, 'é') }}",
        "{{ 'x'.zfill(10000000000) }}",
        "{{ 'ab' * 10000000000 }}",
        "{{ 10000000000 * 'ab' }}",
        "{{ [1, 2] * 10000000000 }}",
        "{{ (1, 2) * 9223372036854775807 }}",
        "{{ [1]|slice(99999999999)|list }}",
        "{{ [1]|batch(99999999999, 'x')|list }}",
        "{{ range(99999999999)|list }}",
        "{{ range(-9223372036854775807, 9223372036854775807)|length }}",
        "{{ [{'a': [1]}]|tojson(indent=9999999999) }}",
        "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
        "{{ ('x' * 1000000)|replace('', 'y' * 1000000) }}",
        "{{ (['x' * 1000] * 1000)|join('y' * 1000000) }}",
        "{{ ('y' * 1000000).join(['x'] * 1000) }}",
        "{{ ('é' * 20000000)|tojson(ensure_ascii=true) }}",
        "{{ [['\x01' * 1000000] * 100]|string|length }}",
        "{{ ('%Y' * 10000000)|length }}{{ strftime_now('%A' * 10000000)|length }}",
    ] {
        assert!(matches!(limit(source), Limit::Bytes { .. }), "{source}");
    }
}

/// Each loop makes something larger at every turn.
#[test]
fn growth_in_a_loop_ends() {
    let grow = |start: &str, step: &str, end: &str| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range(300) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
        )
    };
    for (start, step) in [
        ("'x'", "ns.x ~ ns.x"),
        ("'x'", "ns.x + ns.x"),
        ("'x'", "ns.x * 2"),
        ("'x'", "ns.x.replace('x', 'xx')"),
        ("'x'", "ns.x|replace('x', 'xx')"),
        ("'x'", "'%s%s' % (ns.x, ns.x)"),
        ("'x'", "'%s%s'|format(ns.x, ns.x)"),
        ("'x'", "'{0}{0}'.format(ns.x)"),
        ("'x'", "[ns.x, ns.x]|join"),
        ("'x'", "ns.x.join([ns.x, ns.x, ns.x])"),
        ("'\"'", "ns.x|tojson"),
        ("'x y'", "ns.x|replace(' ', ns.x)"),
        ("[1]", "ns.x + ns.x"),
        ("(1,)", "ns.x + ns.x"),
        ("[1]", "ns.x * 2"),
        ("[1, 2]", "ns.x|map('list')|list + [ns.x, ns.x] if false else ns.x + ns.x"),
        ("[1]", "[ns.x, ns.x, ns.x, ns.x]|sum(start=[])"),
        ("'x'", "{'a': ns.x, 'b': ns.x}|string"),
        ("'x'", "{'a': ns.x, 'b': ns.x}|tojson"),
    ] {
        let source = grow(start, step, "");
        assert!(matches!(limit(&source), Limit::Bytes { .. }), "{source}");
    }
    // Values that share their parts are small in memory and endless to walk over.
    for (start, step) in [("[1]", "[ns.x, ns.x]"), ("(1,)", "(ns.x, ns.x)"), ("{}", "{'a': ns.x, 'b': ns.x}")] {
        for end in ["{{ ns.x == ns.x }}", "{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x in [ns.x] }}"] {
            let source = grow(start, step, end);
            assert!(matches!(limit(&source), Limit::Bytes { .. } | Limit::ValueDepth { .. }), "{source}");
        }
    }
    // Values that are deep, which dropping or writing them would walk down.
    for (start, step) in [("[1]", "[ns.x]"), ("{}", "{'a': ns.x}"), ("1", "(ns.x,)"), ("{}", "dict(a=ns.x)")] {
        let source = grow(start, step, "");
        assert!(matches!(limit(&source), Limit::ValueDepth { .. }), "{source}");
    }
}

#[test]
fn captured_text_is_counted_too() {
    let text = "x".repeat(1000);
    for source in [
        format!("{{% set a %}}{{% for i in range(100000) %}}{text}{{% endfor %}}{{% endset %}}"),
        format!("{{% macro m(n) %}}{{% if n > 0 %}}{{{{ m(n - 1) }}}}{{{{ m(n - 1) }}}}{text}{{% endif %}}{{% endmacro %}}{{{{ m(40) }}}}"),
        format!("{{% for i in range(1000000) %}}{text}{{% endfor %}}"),
        format!("{{% filter upper %}}{{% for i in range(1000000) %}}{text}{{% endfor %}}{{% endfilter %}}"),
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}{% endfor %}".into(),
        "{% macro w() %}{{ caller() }}{{ caller() }}{% endmacro %}{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set t %}{% call w() %}{{ ns.x }}{% endcall %}{% endset %}{% set ns.x = t %}{% endfor %}".into(),
    ] {
        assert!(matches!(limit(&source), Limit::Bytes { .. } | Limit::Steps { .. }), "{source:.200}");
    }
}

#[test]
fn work_without_text_ends() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set a = range(100000)|list %}{% for i in a %}{% if i in a %}{% endif %}{% endfor %}",
        "{% set a = 'x' * 1000000 %}{% for i in range(100000) %}{% if 'y' in a %}{% endif %}{% endfor %}",
        "{% set a = 'x' * 1000000 %}{% for i in range(100000) %}{{ a|length }}{% endfor %}",
        "{% set a = 'x' * 1000000 %}{% for i in range(100000) %}{{ a == 'x' * 1000000 }}{% endfor %}",
        "{{ range(300000)|unique|list|length }}",
        "{% set a = range(200000)|list %}{% for i in range(10000) %}{% set b = a|sort %}{% endfor %}",
        "{% set ns = namespace() %}{% for i in range(10000000) %}{% endfor %}",
        "{% macro m(n) %}{% if n > 0 %}{% if m(n - 1) == m(n - 1) %}{% endif %}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% set d = dict(range(9)|list|length|string * 0 ~ 'a', a=1) %}{% for i in range(10000000) %}{{ d.a }}{% endfor %}",
    ] {
        assert!(matches!(limit(source), Limit::Steps { .. } | Limit::Bytes { .. }), "{source}");
    }
}

/// Neither the parser, nor the tree, nor a macro that calls itself runs out of stack.
#[test]
fn nesting_ends() {
    let many = |text: &str, count: usize| text.repeat(count);
    for count in [99, 101, 1000, 100_000] {
        for source in [
            format!("{{{{ {}1{} }}}}", many("(", count), many(")", count)),
            format!("{{{{ {}1{} }}}}", many("[", count), many("]", count)),
            format!("{{{{ {}1{} }}}}", many("{'a':", count), many("}", count)),
            format!("{{{{ {}1 }}}}", many("- ", count)),
            format!("{{{{ {}1 }}}}", many("not ", count)),
            format!("{{{{ {}1{} }}}}", many("x[", count), many("]", count)),
            format!("{{{{ {}1{} }}}}", many("x(", count), many(")", count)),
            format!("{{{{ {}1 }}}}", many("1 if 0 else ", count)),
            format!("{}{}", many("{% if 1 %}", count), many("{% endif %}", count)),
            format!("{}{}", many("{% for i in [1] %}", count), many("{% endfor %}", count)),
            format!("{}{}", many("{% macro a() %}", count), many("{% endmacro %}", count)),
            format!("{}x{}", many("{% set a %}", count), many("{% endset %}", count)),
            format!("{{% set {}a{} = 1 %}}", many("(", count), many(")", count)),
        ] {
            // Few levels may work or fail for what they say; many are too many.
            let outcome = render(&source);
            if count > 101 {
                let limited = matches!(&outcome, Err(Error::Template { cause, .. }) if matches!(**cause,
                    TemplateError::Limit { limit: Limit::Nesting { .. } | Limit::Source { .. }, .. }));
                assert!(limited, "{source:.60}: {outcome:?}");
            }
        }
        // What is long is not deep.
        for source in [
            format!("{{{{ 1{} }}}}", many(" + 1", count)),
            format!("{{{{ 1{} }}}}", many(" ~ 1", count)),
            format!("{{{{ 1{} }}}}", many(" or 1", count)),
            format!("{{{{ 1{} }}}}", many("|string", count)),
            format!("{{{{ 'a'{} }}}}", many(".strip()", count)),
            format!("{{% if 0 %}}{}{{% endif %}}", many("{% elif 0 %}", count)),
        ] {
            assert!(render(&source).is_ok() || source.len() > 1 << 20, "{source:.60}: {:?}", render(&source));
        }
    }
    let recursion = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    assert!(matches!(limit(recursion), Limit::Nesting { .. }));
    let nested = format!(
        "{{% macro m(n) %}}{{{{ {}m(n + 1){} }}}}{{% endmacro %}}{{{{ m(0) }}}}",
        many("(1 + ", 60),
        many(")", 60)
    );
    assert!(matches!(limit(&nested), Limit::Nesting { .. }));
    let loops = "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}";
    assert!(matches!(limit(loops), Limit::Nesting { .. } | Limit::ValueDepth { .. }));
    let filters = format!("{{{{ [1]|map('map', {}'list')|list }}}}", many("'map', ", 5000));
    assert!(render(&filters).is_err());
}

/// An error that a template words itself is as harmless as others.
#[test]
fn words_of_a_template_are_escaped() {
    let error = render("{{ raise_exception('\\x1b[2J' ~ 'x' * 1000000) }}").unwrap_err().to_string();
    assert!(error.contains("\\u{1b}[2J") && error.len() < 1000 && !error.contains('\u{1b}'), "{error:.300}");
    let error = render("{{ messages|nope }}").unwrap_err().to_string();
    assert_eq!(error, "chat template: line 1: there is no filter 'nope'");
    let limited = render("a\n\n{{ 'x' * 99999999999 }}").unwrap_err().to_string();
    assert!(limited.starts_with("chat template: line 3: it makes more than the 67"), "{limited}");
}

/// The bounds are in the way of no conversation: a long one takes a small part of what it may.
#[test]
fn long_conversations_are_rendered() {
    let source = "{%- set ns = namespace(last='') -%}{%- for m in messages -%}{%- if m.role == 'user' -%}\
        {%- set content = m.content | trim -%}{%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}\
        {{- '<|im_start|>' ~ m.role ~ '\n' ~ content ~ '<|im_end|>\n' -}}{%- set ns.last = m.content -%}{%- else -%}\
        {{- '<|im_start|>' + m['role'] + '\n' + m['content'].strip() + '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}";
    let template = ChatTemplate::new(source, &[]).unwrap();
    for (turns, length) in [(20_000, 100), (10, 4_000_000)] {
        let messages: Vec<Message> = (0..turns)
            .map(|turn| Message::new(if turn % 2 == 0 { "user" } else { "assistant" }, &"word ".repeat(length / 5)))
            .collect();
        let text = template.render(&messages, true).unwrap();
        assert!(text.len() > turns * (length - 1), "{} bytes", text.len());
    }
}

#[test]
fn folders_and_gguf_files_have_the_same_bounds() {
    let bomb = "{{ '%99999999999d'|format(1) }}";
    let folder = std::env::temp_dir().join(format!("kiln-bomb-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let message = [Message::new("user", "hello")];
    let config = serde_json::json!({"chat_template": bomb}).to_string();
    for (name, content) in [("chat_template.jinja", bomb), ("tokenizer_config.json", &config)] {
        std::fs::write(folder.join(name), content).unwrap();
        let error = ChatTemplate::read(&folder).unwrap().unwrap().render(&message, true).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("line 1: it makes more than the"), "{error}");
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("chat_template.jinja"), "x".repeat(2 << 20)).unwrap();
    let error = ChatTemplate::read(&folder).unwrap_err().to_string();
    assert!(error.contains("more than the 1048576 bytes"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
    // A GGUF file of one key.
    let (key, kind) = ("tokenizer.chat_template", 8u32);
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(0u64.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.extend((key.len() as u64).to_le_bytes());
    file.extend(key.as_bytes());
    file.extend(kind.to_le_bytes());
    file.extend((bomb.len() as u64).to_le_bytes());
    file.extend(bomb.as_bytes());
    let file = kiln_llm::Gguf::from_bytes(file).unwrap();
    let error = ChatTemplate::from_gguf(&file).unwrap().unwrap().render(&message, true).unwrap_err().to_string();
    assert!(error.starts_with("tokenizer.chat_template: line 1: it makes more than the"), "{error}");
}
