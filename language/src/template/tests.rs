//! The results of Jinja2 3.1.6 for the same templates, with the settings of transformers; and hostile templates.

use super::limits::{BUDGET, MAX_CALLS, MAX_DEPTH, MAX_NESTING, MAX_SOURCE};
use super::value::Value;
use super::{Template, TemplateError};

fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => {
            number.as_i64().map_or_else(|| Value::Float(number.as_f64().unwrap()), Value::Int)
        }
        serde_json::Value::String(text) => text.clone().into(),
        serde_json::Value::Array(items) => Value::list(items.iter().map(value).collect()),
        serde_json::Value::Object(map) => Value::map(map.iter().map(|(name, item)| (&**name, value(item)))),
    }
}

fn rendered(template: &str) -> Result<String, TemplateError> {
    rendered_to(template, MOST)
}

fn rendered_to(template: &str, most: usize) -> Result<String, TemplateError> {
    let serde_json::Value::Object(variables) = serde_json::from_str(VARIABLES).unwrap() else { panic!() };
    let variables = variables.iter().map(|(name, item)| (&**name, value(item))).collect();
    Template::parse(template)?.render(variables, most)
}

/// The most bytes of a text here.
const MOST: usize = 4 << 20;

const VARIABLES: &str = r##"{"messages": [{"role": "system", "content": "Be <brief>."}, 
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Wh'at\n is it?"}]}, 
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA cat.\n"}],
    "add_generation_prompt": true, "n": 7, "f": 2.5, "s": "H\u00e4llo w\u00f6rld", "nothing": null, "tools": [{"name": "f",
    "parameters": {"a": [1, 2.0, true, null, "x\"y"]}}], "empty": []}"##;

/// A template and its text.
const CASES: &[(&str, &str)] = &[
    (
        "{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ -n }} {{ +n }} {{ (1 + 2) * 3 }}",
        "6 1 -4 2 1024 3.5 -7 7 9",
    ),
    ("{{ f * 2 }} {{ 1.0 }} {{ 10 / 5 }} {{ 5.5 // 2 }} {{ 5.5 % 2 }}", "5.0 1.0 2.0 2.0 1.5"),
    (
        "{{ true }} {{ False }} {{ none }} {{ None is none }} {{ missing }}|{{ missing is defined }}",
        "True False None True |False",
    ),
    (
        "{{ [1, 'a', \"b'c\", 2.5, none, true] }} {{ {'a': 1, 'b': [2]} }} {{ (1, 2)[1] }}",
        "[1, 'a', \"b'c\", 2.5, None, True] {'a': 1, 'b': [2]} 2",
    ),
    (
        "{{ 'a' ~ 1 ~ none ~ missing ~ 2.5 }} {{ 'a' + 'b' 'c' }} {{ 'ab' * 3 }} {{ [1] * 2 + [3] }}",
        "a1None2.5 abc ababab [1, 1, 3]",
    ),
    (
        "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 'a' == 1 }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ missing == none }}",
        "True False True True True False True True False",
    ),
    (
        "{{ 'ell' in 'hello' }} {{ 2 in [1, 2] }} {{ 'a' in {'a': 0} }} {{ 3 not in [1, 2] }} {{ not 'x' in 'y' }} {{ 'x' in missing }}",
        "True True True True True False",
    ),
    (
        "{{ not true }} {{ not not 1 }} {{ not not not none }} {{ 1 and 0 }} {{ 0 or 'x' }} {{ '' or [] or 'last' }} {{ 1 and 'yes' or 'no' }}",
        "False True True 0 x last yes",
    ),
    (
        "{{ 'a' if n > 5 else 'b' }} {{ 'a' if n > 9 }}| {{ 'a' if n > 9 else 'b' if n > 6 else 'c' }}",
        "a | b",
    ),
    (
        "{{ messages[0].role }} {{ messages[0]['content'] }} {{ messages[-1]['role'] }} {{ messages[9] }}| {{ messages[1].content[1].text }} {{ messages.0.role }}",
        "system Be <brief>. assistant | Wh'at\n is it? system",
    ),
    (
        "{{ messages[0].missing }}| {{ messages[0].missing is defined }} {{ nothing.x }}| {{ s[1] }} {{ s[-1] }}",
        "| False | ä d",
    ),
    (
        "{{ s[1:4] }} {{ s[::-1] }} {{ s[:-2] }} {{ s[-3:] }} {{ [1,2,3,4,5][::2] }} {{ [1,2,3,4,5][4:0:-2] }} {{ [1,2,3][5:] }} {{ [1,2,3][:-9] }} {{ [1,2,3][-9:2] }} {{ [1,2,3][::-1] }} {{ [1,2,3][1::-1] }}",
        "äll dlröw olläH Hällo wör rld [1, 3, 5] [5, 3] [] [] [1, 2] [3, 2, 1] [2, 1]",
    ),
    (
        "{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.startswith('Hä') }} {{ s.endswith('x') }} {{ 'aXbXc'.split('X') }} {{ 'aXbXc'.split('X', 1) }} {{ ' a  b '.split() }} {{ 'a\\nb\\n'.splitlines() }}",
        "HÄLLO WÖRLD hällo wörld Hällo Wörld Hällo wörld True False ['a', 'b', 'c'] ['a', 'bXc'] ['a', 'b'] ['a', 'b']",
    ),
    (
        "{{ '  x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n\\na\\n'.lstrip('\\n') }}|{{ 'a  '.rstrip() }}| {{ 'abcabc'.replace('b', '--') }} {{ 'abcabc'.replace('b', 'x', 1) }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'aaa'.count('a') }} {{ 'abc'.count('') }} {{ ', '.join(['a', 'b']) }} {{ 'xay'.removeprefix('x').removesuffix('y') }}",
        "x|a|a\n|a| a--ca--c axcabc 2 -1 3 4 a, b a",
    ),
    (
        "{{ {'a': 1, 'b': 2}.items() | length }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }} {{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 5) }}",
        "2 ['a'] [1] 1 None 5",
    ),
    (
        "{{ '  x ' | trim }}| {{ s | upper }} {{ s | length }} {{ messages | length }} {{ {'a': 1} | length }} {{ [1,2] | first }} {{ [1,2] | last }} {{ 'abc' | list }} {{ [3,1] | reverse | list }} {{ 'abc' | reverse }} {{ [1, 'a'] | join('-') }} {{ [1, 2] | join }}",
        "x| HÄLLO WÖRLD 11 3 1 1 2 ['a', 'b', 'c'] [1, 3] cba 1-a 12",
    ),
    (
        "{{ missing | default('d') }} {{ '' | default('d') }}| {{ '' | default('d', true) }} {{ '' | d('e', boolean=true) }} {{ none | default('d') }} {{ '42' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 3.9 | int }} {{ 3 | string + 'x' }} {{ 'a' | safe }} {{ 'ab' | replace('a', 'c') }} {{ 'hello world' | title }} {{ {'a': 1} | items | map(attribute=0) | join }}",
        "d | d e None 43 0 5 3 3x a cb Hello World a",
    ),
    (
        "{{ tools | tojson }} {{ s | tojson }} {{ {'a': none, 'b': 'q\"\\\\\\n\\u0001é'} | tojson }}",
        "[{\"name\": \"f\", \"parameters\": {\"a\": [1, 2.0, true, null, \"x\\\"y\"]}}] \"Hällo wörld\" {\"a\": null, \"b\": \"q\\\"\\\\\\n\\u0001é\"}",
    ),
    (
        "{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | list }} {{ [{'a': 0}, {'a': 1}] | selectattr('a') | list }}",
        "system,user,assistant 1 ['system', 'assistant'] [{'a': 1}]",
    ),
    (
        "{{ 1 is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ [] is sequence }} {{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ true is boolean }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is true }} {{ 1 is not none }} {{ 2 is in [1, 2] }} {{ 'a' is eq 'a' }} {{ missing is undefined }} {{ 1 is true }} {{ s is iterable and s is not mapping }}",
        "True True True True True True True True False True True True True True True True True False True",
    ),
    (
        "{{ range(4) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(3, 1) | list }}",
        "[0, 1, 2, 3] [1, 2, 3] [5, 3, 1] [] []",
    ),
    (
        "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
        "10TrueFalse3322;21FalseFalse32113;32FalseTrue3102;",
    ),
    (
        "{% for x in empty %}x{% else %}none{% endfor %}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}{% for c in 'ab' %}[{{ c }}]{% endfor %}{% for x in missing %}{% else %}!{% endfor %}",
        "nonea=1 b=2 a[a][b]!",
    ),
    (
        "{% for x in range(9) if x is odd %}{% if x == 7 %}{% break %}{% endif %}{% if x == 3 %}{% continue %}{% endif %}{{ loop.index }}:{{ x }} {% endfor %}",
        "1:1 3:5 ",
    ),
    (
        "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
        "2319",
    ),
    (
        "{% set ns = namespace(a=0, b='x') %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{% set ns.c = [1] %}{{ ns.c }}{{ ns.z }}",
        "3x[1]",
    ),
    (
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c + d }}{% set t = 1, 2 %}{{ t[0] }}",
        "1271",
    ),
    ("{% set b %}<{{ n }}>{% endset %}{{ b }}{{ b | length }}", "<7>3"),
    (
        "{% macro m(a, b='y', c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m('x') }} {{ m('x', c=1) }} {{ m(a=1, b=2) }} {{ m(1, 2, 3) | length }}",
        "xy3 xy1 123 3",
    ),
    (
        "{% set g = 'global' %}{% macro m() %}{{ g }}{{ n }}{% endmacro %}{% for i in [1] %}{% set g = 'local' %}{{ m() }}{% endfor %}",
        "global7",
    ),
    (
        "{% if n == 7 %}seven{% elif n == 8 %}eight{% else %}other{% endif %}{% if n == 8 %}{% elif n > 6 %}big{% endif %}{% if n == 1 %}{% elif n == 2 %}{% else %}x{% endif %}",
        "sevenbigx",
    ),
    ("{# a comment #}a{#- b -#} c {{- 'x' -}} d{%- if true %} e {%- endif -%} f", "acxd ef"),
    (
        "{{ \"dq \\\" \\\\ \\x41 \\u00e9 \\q\" }} {{ 'it''s' }} {{ 'a' in ('a', 'b') }} {{ (1,)[0] }} {{ [1, 2,] }}",
        "dq \" \\ A é \\q its True 1 [1, 2]",
    ),
    (
        "{{ {'a': {'b': {'c': 1}}}.a.b['c'] }} {{ ('%s' ~ 'x') }} {{ 'a.b'.split('.')[-1].upper() | lower }}",
        "1 %sx b",
    ),
    (
        "{{ messages[1:] | length }} {{ messages[::-1][0].role }} {{ (messages | length - 1) }} {{ messages[(messages | length) - 1].content.split('</think>')[-1].lstrip('\\n') }}",
        "2 assistant 2 A cat.\n",
    ),
    (
        "{{ -2 | string }} {{ not messages }} {{ messages and 'some' }} {{ [] == empty }} {{ n is defined and n }} {{ [[1, [2]]] }}",
        "-2 False some True 7 [[1, [2]]]",
    ),
    (
        "{%- for message in messages %}\n    {%- if loop.first %}\n        {{- 'first\\n' }}\n    {%- endif %}\n    {{- message.role }}\n    {% if message.content is string %}\n  text\n    {% else %}\n        {% for part in message.content %}\n            {% if 'text' in part %}\n [{{ part.text }}]\n            {% endif -%}\n        {% endfor %}\n    {% endif %}\n{%- endfor %}",
        "first\nsystem\n  text\nuser\n [Wh'at\n is it?]\nassistant\n  text\n",
    ),
    ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
    ("  {%+ if true %}x{% endif +%}\n y\n\n", "  x\n y\n"),
    ("{% if true %}\n\nx{% endif %}\n{{ n }}\n{# c #}\nend\n\n", "\nx7\nend\n"),
    ("x {%- if true -%} y {%- endif -%} z\r\nq\r\n", "xyz\nq"),
    ("\t{# c #}\n\t{% set a = 1 %}\n {{ a }} {% if a %} b {% endif %} \n", " 1  b  "),
    ("{{ '{{' }} { % x % } {{ {'a': {}} }} }} %}", "{{ { % x % } {'a': {}} }} %}"),
    (
        "{{ -f }} {{ 1.5 + 1 }} {{ 1.5 - 1 }} {{ 5.0 / 2 }} {{ 2.0 ** 0 }} {{ 7.5 % 2 }} {{ 7 // -2 }} {{ 7 % -3 }} {{ -6 // 3 }}",
        "-2.5 2.5 0.5 2.5 1.0 1.5 -4 -2 -2",
    ),
    (
        "{{ 1 != 2 }} {{ 2 <= 2 }} {{ 3 <= 2 }} {{ 2 > 2 }} {{ 2 >= 2 }} {{ missing == missing }} {{ 9007199254740993 == 9007199254740992 }} {{ [1] == [1, 2] }} {{ {'a': 1} == {'a': 1, 'b': 2} }} {{ [1, 3] == [2, 3] }} {{ {'a': 1, 'b': 2} == {'a': 2, 'b': 2} }}",
        "True True False False True True False False False False False",
    ),
    ("{{ ['a\\\\b', 'a\\'b\"c', 'q\"'] }}", "['a\\\\b', 'a\\'b\"c', 'q\"']"),
    (
        "{{ [1][1] }}|{{ 'a'[1] }}|{% for i in [4] %}{{ loop['index'] }}{% endfor %}{% set ns = namespace(a=3) %}{{ ns['a'] }}",
        "||13",
    ),
    (
        "{{ range(1, 5, 3) | list }} {{ 2 is ne 3 }} {{ 2 is ne 2 }} {{ false is false }} {{ true is false }} {{ '\\U0001F600' }}",
        "[1, 4] True False True False 😀",
    ),
    ("{{ 0.0 or 'x' }} {{ 0.5 and 'y' }} {{ {} or 'z' }} {{ {'a': 1} and 'w' }}", "x y z w"),
];

#[test]
fn texts_are_those_of_jinja() {
    for (template, text) in CASES {
        match rendered(template) {
            Ok(found) => assert_eq!(found, *text, "{template}"),
            Err(error) => panic!("{template}: {error}"),
        }
    }
}

/// The error of a template, which is read or rendered on a thread with no more stack than threads have.
fn refused(template: &str) -> TemplateError {
    refused_to(template, MOST)
}

fn refused_to(template: &str, most: usize) -> TemplateError {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let refused = thread.spawn_scoped(scope, || rendered_to(template, most)).unwrap().join().unwrap();
        refused.map(|text| text.len()).expect_err(&template[..template.len().min(100)])
    })
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    for (template, line, part) in [
        ("a\n{{ missing.x }}", 2, "undefined has no attribute `x`"),
        ("{{ 1 + 'a' }}", 1, "`+` of a whole number and a string"),
        ("\n\n{% if true %}\n{{ raise_exception('no tools') }}{% endif %}", 4, "no tools"),
        ("{% if true %}\n", 1, "`if` without its end"),
        ("{% endfor %}", 1, "`endfor` without its beginning"),
        ("{% if 1 %}{% else %}{% elif 2 %}{% endif %}", 1, "`elif` without its beginning"),
        ("{{ 1 +", 1, "a tag without an end"),
        ("{{ 'a }}", 1, "a string without an end"),
        ("{# a", 1, "a comment without an end"),
        ("{{ (1 }}", 1, "a tag without an end"),
        ("{{ 1 2 }}", 1, "the end of the tag is expected before a literal"),
        ("{{ }}", 1, "a value is expected before the end of the tag"),
        ("{{ a ? b }}", 1, "`?` is not expected"),
        ("{% include 'x' %}", 1, "`include` blocks are not supported"),
        ("{{ x | eval }}", 1, "undefined has no `eval`"),
        ("{{ 1 | eval }}", 1, "the filter `eval` is not supported"),
        ("{{ '%s' | format(1) }}", 1, "the filter `format` is not supported"),
        ("{{ 'a'.format(1) }}", 1, "the method `format` of a string is not supported"),
        ("{{ cycler(1) }}", 1, "`cycler` is undefined, and no function that is supported"),
        ("{{ 1 is prime }}", 1, "the test `prime` is not supported"),
        ("{% set messages.x = 1 %}", 1, "`messages` is no namespace"),
        ("{% for a, b in [[1]] %}{% endfor %}", 1, "2 names for 1 values"),
        ("{{ 9223372036854775807 + 1 }}", 1, "too large"),
        ("{{ 99999999999999999999 }}", 1, "too large"),
        ("{{ 10 ** 30 }}", 1, "too large"),
        ("{{ 1 // 0 }}{{ 1 % 0 }}", 1, "division by zero"),
        ("{{ (0 - 9223372036854775807 - 1) // -1 }}", 1, "too large"),
        ("{{ 'a'[::0] }}", 1, "step is 0"),
        ("{{ range(1, 2, 0) }}", 1, "step of 0"),
        ("{{ 'a'.split('') }}", 1, "`split` by nothing"),
        ("{{ 'a'.replace('', 'b') }}", 1, "`replace` of nothing"),
        ("{{ '\\ud800' }}", 1, "digits of a character's number"),
        ("{{ 1.0 / 0 }}", 1, "division by zero"),
        ("{{ missing[0] }}", 1, "undefined has no entries"),
        ("{{ 1 | upper }}", 1, "`upper` takes a string, not a whole number"),
        ("{{ 'a'.upper(1) }}", 1, "`upper` takes at most 0 arguments"),
        ("{{ 'a'.strip(chars='a') }}", 1, "`strip` takes at most 1 arguments, none by name"),
        ("{{ n | tojson(indent=2) }}", 1, "`tojson` with an indent"),
        ("{{ n | tojson(ensure_ascii=true) }}", 1, "`tojson` with an indent or with only ASCII"),
        ("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", 1, "macro `m` has 1 parameters"),
        ("{% macro m(a) %}{% endmacro %}{{ m(1, b=2) }}", 1, "macro `m` has 1 parameters"),
        ("{% set a, b.c = 1 %}", 1, "only a name has attributes"),
        ("{% set a, b %}x{% endset %}", 1, "a block can be set to one name only"),
        ("{{ 1 + else }}", 1, "a value is expected before `else`"),
        ("{{ 1 + * }}", 1, "a value is expected before `*`"),
    ] {
        let error = refused(template);
        assert!(error.line == line && error.reason.contains(part), "{template}: {error}");
    }
}

/// Each takes all time, memory or stack elsewhere.
#[test]
fn templates_made_to_do_harm_are_refused() {
    let doubling =
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    let tree = "{% set ns = namespace(a=['x'], b=['x']) %}{% for i in range(28) %}{% set ns.a = [ns.a, ns.a] %}\
        {% set ns.b = [ns.b, ns.b] %}{% endfor %}";
    let costs = "too many steps, or makes too much text";
    for (template, part) in [
        ("{% set ns = namespace() %}{% set ns.s = ns %}{{ ns }}".to_owned(), "a namespace can't be put into another"),
        ("{% set ns = namespace() %}{{ [ns] }}".to_owned(), "a namespace can't be put into another"),
        ("{% set ns = namespace() %}{{ ns }}".to_owned(), "a namespace can't be printed"),
        (doubling.to_owned(), costs),
        (doubling.replace('~', "+"), costs),
        (doubling.replace("ns.s ~ ns.s", "ns.s * 2"), costs),
        (doubling.replace("ns.s ~ ns.s", "ns.s | replace('a', ns.s)"), costs),
        (doubling.replace("ns.s ~ ns.s", "ns.s.join([ns.s, ns.s])"), costs),
        (doubling.replace("{% set ns.s = ns.s ~ ns.s %}", "{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}"), costs),
        ("{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns = namespace(s='ab') %}{% for i in range(99) %}\
          {% set ns.s = m(ns.s) %}{% endfor %}".to_owned(), costs),
        (doubling.replace("'ab'", "[1]").replace('~', "+"), costs),
        (format!("{tree}{{% if ns.a == ns.b %}}{{% endif %}}"), costs),
        (format!("{tree}{{{{ ns.a }}}}"), costs),
        (format!("{tree}{{{{ ns.a | tojson }}}}"), costs),
        (format!("{tree}{{{{ ns.a | join }}}}"), costs),
        (tree.replace("28", "99"), "values are nested more than 32 deep"),
        ("{{ [0] * 1000000000 }}".to_owned(), costs),
        ("{{ 'a' * 1000000000000000 }}".to_owned(), costs),
        ("{{ [0, 0] * 9223372036854775807 }}".to_owned(), costs),
        ("{{ range(1000000000) | length }}".to_owned(), costs),
        ("{{ range(-9223372036854775807, 9223372036854775807) | length }}".to_owned(), costs),
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".to_owned(), costs),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{{ 'some text' }}{% endfor %}{% endfor %}".to_owned(), costs),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(), "macros call each other more than 8 deep"),
        ("{{ '%.999999999f' | format(1.0) }}".to_owned(), "`format` is not supported"),
        (format!("{{{{ {}1 }}}}", "(".repeat(100_000)), "without an end"),
        (format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)), "nested"),
        (format!("{{{{ {}1{} }}}}", "[".repeat(100_000), "]".repeat(100_000)), "nested"),
        (format!("{{{{ {}1{} }}}}", "{'a':".repeat(100_000), "}".repeat(100_000)), "nested"),
        (format!("{{{{ x{}0{} }}}}", "[x".repeat(100_000), "]".repeat(100_000)), "nested"),
        (format!("{{{{ {}1 }}}}", "- ".repeat(100_000)), "nested"),
        (format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(80_000)), "nested"),
        (format!("{{{{ {}1{} }}}}", "range(".repeat(100_000), ")".repeat(100_000)), "nested"),
        (format!("{}{}", "{% if 1 %}".repeat(40_000), "{% endif %}".repeat(40_000)), "nested"),
        ("{".repeat(100_000), "a tag without an end"),
        (" ".repeat(MAX_SOURCE + 1), "larger than"),
    ] {
        // by the budget alone
        let error = refused_to(&template, usize::MAX);
        assert!(error.reason.contains(part), "{}: {error}", &template[..template.len().min(100)]);
    }
}

/// The text has its own limit, below what the budget allows.
#[test]
fn texts_have_a_limit() {
    let just = format!("{{{{ 'a' * {MOST} }}}}");
    assert_eq!(rendered(&just).unwrap().len(), MOST);
    for template in [
        "{{ ('a'*10000)|replace('a','b'*10000) }}",
        &format!("{just}b"),
        &format!("b{just}"),
        &format!("{{% set t %}}{just}b{{% endset %}}"),
        "{% set s = 'a' * 1000000 %}{% for i in range(9) %}{{ s }}{% endfor %}",
        "{% set s = ['a' * 1000000] * 9 %}{{ s }}",
    ] {
        let error = refused(template);
        assert!(error.reason.contains("more than 4194304 bytes of text"), "{template}: {error}");
    }
    let raised = refused("{{ raise_exception('ä' * 1000000) }}");
    assert!(raised.reason.len() <= 1000, "{}", raised.reason.len());
    let name = "n".repeat(257);
    assert!(refused(&format!("{{{{ {name} }}}}")).reason.contains("at most 256"));
}

/// A loop over steps that each read or compare much: all of them end by the budget, after at most some seconds.
#[test]
fn every_step_pays_for_what_it_reads() {
    let many = |before: &str, step: &str| {
        format!("{before}{{% for i in range(400000) %}}{{% if {step} %}}{{% endif %}}{{% endfor %}}")
    };
    let long = "{% set s = ' ' * 20000000 %}";
    let keys = "{% set m = {'x' * 20000000: 1} %}{% set k = 'x' * 19999999 ~ 'y' %}";
    let lists = "{% set a = [1] + [2] * 500000 %}{% set b = [3] + [2] * 500000 %}";
    for template in [
        many(long, "s | int"),
        many(keys, "k in m"),
        many(keys, "m[k]"),
        many(keys, "m.get(k)"),
        many(keys, "m == {k: 1}"),
        many(keys, "{'x' * 20000000: 1, k: 2}"),
        format!(
            "{{% macro m({}a=1) %}}{{% endmacro %}}{}",
            (0..50_000).map(|i| format!("a{i},")).collect::<String>(),
            many("", "m()")
        ),
    ] {
        let since = std::time::Instant::now();
        let error = refused(&template);
        let (first, spent) = (&template[..template.len().min(150)], since.elapsed());
        assert!(error.reason.contains("too many steps"), "{first}: {error}");
        assert!(spent.as_secs() < 60, "{first}: {spent:?}");
    }
    // lists that differ at once, or in their lengths, are not gone through
    let since = std::time::Instant::now();
    let loops = "{% for i in range(200000) %}{% if a == b or a == [1] %}{% endif %}{% endfor %}";
    assert_eq!(rendered(&format!("{lists}{loops}")).unwrap(), "");
    assert!(since.elapsed().as_secs() < 60, "{:?}", since.elapsed());
}

/// Chains take no stack, however long.
#[test]
fn long_chains_are_no_nesting() {
    std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(|| {
            assert_eq!(rendered(&format!("{{{{ {}1 }}}}", "not ".repeat(100_000))).unwrap(), "True");
            assert_eq!(rendered(&format!("{{{{ 0{} }}}}", " + 1".repeat(100_000))).unwrap(), "100000");
            assert_eq!(rendered(&format!("{{{{ 0{} }}}}", " or 0".repeat(100_000))).unwrap(), "0");
            assert_eq!(rendered(&format!("{{{{ 1{} }}}}", " < 2 > 1".repeat(50_000))).unwrap(), "True");
            assert_eq!(rendered(&format!("{{{{ 'a'{} }}}}", " | trim".repeat(100_000))).unwrap(), "a");
            assert_eq!(rendered(&format!("{{{{ 'a'{} }}}}", "[0]".repeat(100_000))).unwrap(), "a");
            let branches = "{% elif 0 %}".repeat(50_000);
            assert_eq!(rendered(&format!("{{% if 0 %}}{branches}{{% else %}}x{{% endif %}}")).unwrap(), "x");
        })
        .unwrap()
        .join()
        .unwrap();
}

/// The deepest nesting of everything at once fits a thread's stack.
#[test]
fn the_deepest_template_fits_the_stack() {
    let depth = MAX_NESTING / 2 - 1;
    let inner = format!("{}m(){}", "(".repeat(depth), ")".repeat(depth));
    let blocks = MAX_NESTING - 2;
    let body =
        format!("{}{{{{ {inner} }}}}{}", "{% for i in [1] %}".repeat(blocks), "{% endfor %}".repeat(blocks));
    let error = refused(&format!("{{% macro m() %}}{body}{{% endmacro %}}{{{{ m() }}}}"));
    assert!(error.reason.contains("macros call each other"), "{error}");
    let list = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert!(refused(&format!("{{{{ {list} }}}}{{{{ [[[{list}]]] }}}}")).reason.contains("nested"));
}

/// A template exactly at a limit is accepted, and limits count what is open at a time.
#[test]
fn limits_are_inclusive() {
    let text = |template: &str| rendered(template).unwrap();
    let inside = |begin: &str, n: usize, middle: &str, end: &str| {
        format!("{}{middle}{}", begin.repeat(n), end.repeat(n))
    };
    assert_eq!(text(&" ".repeat(MAX_SOURCE)).len(), MAX_SOURCE);
    assert_eq!(text(&inside("{% if 1 %}", MAX_NESTING, "x", "{% endif %}")), "x");
    assert_eq!(text(&"{% if 1 %}x{% endif %}".repeat(MAX_NESTING + 1)).len(), MAX_NESTING + 1);
    // an expression in parentheses takes two levels, and one behind `else` one
    assert_eq!(text(&format!("{{{{ 1 if 0 else {} }}}}", inside("(", MAX_NESTING / 2 - 1, "5", ")"))), "5");
    refused(&format!("{{{{ 1 if 0 else 1 if 0 else {} }}}}", inside("(", MAX_NESTING / 2 - 1, "5", ")")));
    let deep = |n: usize| {
        format!(
            "{{% set ns = namespace(a=1) %}}{{% for i in range({n}) %}}{{% set ns.a = [ns.a] %}}{{% endfor %}}x"
        )
    };
    // the namespace is a level too
    assert_eq!(text(&deep(MAX_DEPTH - 1)), "x");
    assert!(refused(&deep(MAX_DEPTH)).reason.contains("nested"));
    let entry = deep(MAX_DEPTH).replace("[ns.a]", "{'a': ns.a}");
    assert!(refused(&entry).reason.contains("nested"));
    let calls = "{% macro m() %}x{% endmacro %}{% for i in range(9) %}{{ m() }}{% endfor %}";
    assert_eq!(text(calls), "x".repeat(MAX_CALLS + 1));
    assert_eq!(text("{% generation %}x{% endgeneration %}{{ [1] | tojson(indent=none) }}"), "x[1]");
}

/// A conversation as long as any model takes costs a small part of what is allowed.
#[test]
fn long_conversations_are_rendered() {
    let (template, _) =
        CASES.iter().find(|(template, _)| template.contains("for message in messages")).unwrap();
    let long = "word ".repeat(1000);
    let turn = |role: &str| Value::map([("role", role.into()), ("content", (&*long).into())]);
    let messages =
        Value::list((0..400).map(|i| turn(if i % 2 == 0 { "user" } else { "assistant" })).collect());
    let nodes = Template::parse(template).unwrap();
    let text = super::eval::render(&nodes.0, vec![("messages", messages)], BUDGET / 10, MOST).unwrap();
    assert!(text.len() < 2_000_000 && text.contains("text"), "{}", text.len());
}
