include!("kernel.in.rs");

fn main() {
    let (mut y, x) = (Memory, Memory);
    launch(&scale, &Scale { y: y.write(), x: y.read(), factor: 2.0 });
    drop(x);
}
