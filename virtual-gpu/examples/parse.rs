fn main() {
    for f in std::env::args().skip(1) {
        match pascaline_virtual_gpu::Module::parse(&std::fs::read_to_string(&f).unwrap()) {
            Ok(m) => {
                for k in m.kernels() {
                    println!(
                        "{} params {} shared {} local {} maxntid {:?} insts {}",
                        k.name,
                        k.params.len(),
                        k.shared_bytes,
                        k.local_bytes,
                        k.max_ntid,
                        m.instruction_count(k)
                    );
                }
            }
            Err(e) => println!("{f}: {e}"),
        }
    }
}
