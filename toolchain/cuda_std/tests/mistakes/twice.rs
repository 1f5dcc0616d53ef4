include!("kernel.in.rs");

fn main() {
    let (mut y, x) = (Memory, Memory);
    let written = y.write();
    launch(&scale, &Scale { y: written, x: x.read(), factor: 2.0 });
    launch(&scale, &Scale { y: written, x: x.read(), factor: 2.0 });
}
