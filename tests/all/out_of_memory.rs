//! Out of memory at any point of a conversation: the request fails with its error, the cache is as it was, and the
//! next request is answered as if nothing had happened.

use crate::common::process::in_own_process;
use crate::common::{self, extent};
use pascaline::kv::KvFormat;
use pascaline::memory;
use pascaline::nn::KvCache;
use pascaline::{Error, Result};
use qwen3_vl::generate::user_turn;
use qwen3_vl::{Options, Prompt, Qwen3Vl, Session, Visual};
use std::ops::ControlFlow;
use std::path::Path;

/// Every layer grows or none does, and what was taken on the way is given back.
#[test]
fn a_cache_grows_in_all_layers_or_in_none() {
    in_own_process!();
    let device = common::cuda_device();
    for format in [KvFormat::F32, KvFormat::Q8_0] {
        let cache = || {
            let mut cache = KvCache::new(3, 2, 32, format, &device).unwrap();
            cache.reserve(8).unwrap();
            cache
        };
        let mut whole = cache();
        let (grown, allocations) = memory::refusing(0, || whole.reserve(64));
        grown.unwrap();
        assert_eq!((whole.capacity(), whole.len()), (64, 0));
        assert!(allocations >= 6, "two tensors for each of three layers");
        for which in 1..=allocations {
            let mut cache = cache();
            let before = cache.bytes();
            let (grown, _) = memory::refusing(which, || cache.reserve(64));
            assert!(matches!(grown, Err(Error::OutOfMemory { .. })), "{which}: {grown:?}");
            assert_eq!((cache.capacity(), cache.len(), cache.bytes()), (8, 0, before), "{format}, {which}");
            assert!(cache.advance(9).is_err(), "there is no room for them");
            cache.reserve(64).unwrap();
            cache.advance(64).unwrap();
            assert_eq!((cache.capacity(), cache.len()), (64, 64));
        }
    }
}

fn generate(model: &Qwen3Vl, session: &mut Session, prompt: &Prompt, options: &Options) -> Result<Vec<u32>> {
    model.generate_from(session, prompt, options, |_| ControlFlow::Continue(())).map(|output| output.ids)
}

/// Short turns in one session, and between them longer ones that run out of memory at one allocation after the other.
fn conversation(model: &Qwen3Vl, visuals: &[Visual], graph: bool, step: usize) {
    let prompt = |visuals: &[Visual], text: &str| {
        model.processor.prepare(&[user_turn(visuals, text)], visuals).unwrap()
    };
    let (longer, shorter) = (prompt(visuals, "What is that, and what is it for?"), prompt(&[], "Hm"));
    let options = Options { max_new_tokens: 2, stop_at_eos: false, graph, ..Options::default() };
    let run = |session: &mut Session, prompt: &Prompt| generate(model, session, prompt, &options);
    let fresh = |prompt: &Prompt| run(&mut model.session().unwrap(), prompt).unwrap();
    let (answer, longer_answer) = (fresh(&shorter), fresh(&longer));
    let mut session = model.session().unwrap();
    assert_eq!(run(&mut session, &shorter).unwrap(), answer);
    for which in (1..).step_by(step) {
        match memory::refusing(which, || run(&mut session, &longer)) {
            (Ok(ids), allocations) => {
                assert!(allocations < which && which > 40, "{which} of {allocations} were refused");
                assert_eq!(ids, longer_answer);
                break;
            }
            (Err(Error::OutOfMemory { .. }), _) => {}
            (other, _) => panic!("allocation {which}: {other:?}"),
        }
        assert_eq!(run(&mut session, &shorter).unwrap(), answer, "after allocation {which}");
    }
}

#[test]
fn a_conversation_survives_out_of_memory_at_every_allocation() {
    in_own_process!();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny");
    let model = Qwen3Vl::load(&tiny, &common::cuda_device()).unwrap();
    let picture = [Visual::image(&tiny.join("cases/small.png")).unwrap()];
    let step = if extent::all() { 1 } else { 3 };
    if step > 1 {
        extent::left_out("two of three allocations of a conversation that runs out of memory");
    }
    conversation(&model, &[], true, step);
    // an allocation of every kind; all of them take minutes on the virtual GPU
    conversation(&model, &[], false, 7);
    conversation(&model, &picture, true, 29);
}
