include!("kernel.in.rs");

pub fn main() {
    let (mut y, x) = (Memory, Memory);
    let mut written = y.write();
    launch(&scale, &Scale { y: written.reborrow(), x: x.read(), factor: 2.0 });
    launch(&scale, &Scale { y: written, x: x.read(), factor: 2.0 });
}
