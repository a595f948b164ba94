//! The expansion of `#[kernel]`.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, FnArg, Ident, ItemFn, Pat, Result, ReturnType, Safety, Signature, Token, Type, Visibility,
};

/// Expands `#[kernel(arguments)] item`.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let bounds: Bounds = syn::parse2(arguments)?;
    let ItemFn { attrs, vis, mut sig, block, .. } = syn::parse2(item)?;
    check_signature(&sig)?;

    let tensor_maps = tensor_map_mask(sig.inputs.iter())?;
    let bounds_name = bounds.name;
    let symbol = Symbol::new(&sig.ident, bounds_name.as_ref());
    let addresses = bind_tensor_maps(&mut sig, tensor_maps, bounds_name.as_ref())?;
    let body = if tensor_maps == 0 { quote!(#block) } else { quote!({ #addresses #block }) };
    let on_cpu = entry(&attrs, &vis, &sig, bounds_name.as_ref(), &body);
    let Signature { ident, inputs, .. } = &sig;
    let Symbol { record, of_function, of_record } = symbol;
    let max_threads = bounds.max_threads.value(1024);
    let min_blocks = bounds.min_blocks.value(32);
    let cluster = bounds.cluster.value(16);
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        // The argument structs are `#[repr(C)]`, so that both sides agree on their layout.
        #[allow(improper_gpu_kernel_arg)]
        #of_function
        #vis unsafe extern "gpu-kernel" fn #ident(#inputs) #body

        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            #of_record
            #[allow(non_upper_case_globals, clippy::unnecessary_cast)]
            static #record: [u32; 4] = [#max_threads, #min_blocks, #cluster, #tensor_maps];
        };

        #on_cpu
    })
}

/// What stands for the kernel where the crate is compiled for the CPU: a constant of its name, with the name of the
/// entry and the types of the parameters. The body is compiled, and nothing can call it.
fn entry(
    attrs: &[Attribute],
    vis: &Visibility,
    sig: &Signature,
    name: Option<&Expr>,
    body: &TokenStream,
) -> TokenStream {
    let Signature { ident, inputs, .. } = sig;
    let (of_entry, of_function): (Vec<_>, Vec<_>) =
        attrs.iter().partition(|attr| ["doc", "cfg"].iter().any(|name| attr.path().is_ident(name)));
    let types = inputs.iter().filter_map(|input| match input {
        FnArg::Typed(parameter) => Some(&parameter.ty),
        FnArg::Receiver(_) => None,
    });
    let name = name.map_or_else(|| ident.to_string().to_token_stream(), ToTokens::to_token_stream);
    quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #(#of_entry)*
        #[allow(non_upper_case_globals)]
        #vis const #ident: ::cuda_std::Entry<unsafe fn(#(#types),*)> = {
            #(#of_function)*
            unsafe fn #ident(#inputs) #body
            ::cuda_std::Entry::new(#name, #ident)
        };
    }
}

/// How a kernel and its record get their names in the PTX.
struct Symbol {
    /// The static with the launch bounds.
    record: Ident,
    of_function: TokenStream,
    of_record: TokenStream,
}

impl Symbol {
    /// That of the function, or `name` if it is given.
    fn new(function: &Ident, name: Option<&Expr>) -> Self {
        let (of_function, of_record) = match name {
            None => (quote!(#[unsafe(no_mangle)]), quote!(#[unsafe(no_mangle)])),
            Some(name) => (
                quote!(#[unsafe(export_name = #name)]),
                quote!(#[unsafe(export_name = concat!("__kernel_record_", #name))]),
            ),
        };
        Self { record: format_ident!("__kernel_record_{}", function), of_function, of_record }
    }
}

/// One argument of the attribute: its name, and its expression if it is given.
struct Bound {
    name: &'static str,
    expression: Option<Expr>,
}

impl Bound {
    /// A constant `u32` expression: the checked argument, or 0 if it is not given.
    fn value(&self, most: u64) -> TokenStream {
        let Some(expression) = &self.expression else { return quote!(0) };
        let message = format!("{} must be 1 to {most}", self.name);
        quote_spanned! { expression.span() => {
            let value = (#expression) as u64;
            assert!(value >= 1 && value <= #most, #message);
            value as u32
        }}
    }
}

/// The arguments of the attribute.
struct Bounds {
    name: Option<Expr>,
    max_threads: Bound,
    min_blocks: Bound,
    cluster: Bound,
}

impl Parse for Bounds {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let bound = |name| Bound { name, expression: None };
        let (max_threads, min_blocks, cluster) = (bound("max_threads"), bound("min_blocks"), bound("cluster"));
        let mut bounds = Bounds { name: None, max_threads, min_blocks, cluster };
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            let expression = match name.to_string().as_str() {
                "name" => &mut bounds.name,
                "max_threads" => &mut bounds.max_threads.expression,
                "min_blocks" => &mut bounds.min_blocks.expression,
                "cluster" => &mut bounds.cluster.expression,
                _ => return Err(Error::new(name.span(), "expected `max_threads`, `min_blocks`, `cluster` or `name`")),
            };
            if expression.is_some() {
                return Err(Error::new(name.span(), format!("`{name}` is given twice")));
            }
            input.parse::<Token![=]>()?;
            *expression = Some(input.parse()?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        match &bounds.min_blocks.expression {
            Some(min_blocks) if bounds.max_threads.expression.is_none() => {
                Err(Error::new(min_blocks.span(), "`min_blocks` needs `max_threads`"))
            }
            _ => Ok(bounds),
        }
    }
}

/// Refuses what cannot be an entry point, at the token that makes it so.
fn check_signature(sig: &Signature) -> Result<()> {
    let refuse = |span, message| Err(Error::new(span, message));
    if !matches!(sig.safety, Safety::Unsafe(_)) {
        return refuse(sig.fn_token.span(), "a kernel must be an `unsafe fn`: the launch cannot check its arguments");
    }
    if let Some(token) = &sig.asyncness {
        return refuse(token.span(), "a kernel cannot be `async`");
    }
    if let Some(token) = &sig.constness {
        return refuse(token.span(), "a kernel cannot be `const`");
    }
    if let Some(abi) = &sig.abi {
        return refuse(abi.span(), "`#[kernel]` sets the ABI: write a plain `unsafe fn`");
    }
    if !sig.generics.params.is_empty() {
        return refuse(sig.generics.span(), "a kernel cannot be generic: the module needs one symbol");
    }
    if let Some(clause) = &sig.generics.where_clause {
        return refuse(clause.span(), "a kernel cannot have a `where` clause");
    }
    if let ReturnType::Type(_, ty) = &sig.output {
        return refuse(ty.span(), "a kernel returns nothing: write the result through a pointer");
    }
    if let Some(variadic) = &sig.variadic {
        return refuse(variadic.span(), "a kernel cannot be variadic");
    }
    match sig.inputs.first() {
        Some(FnArg::Receiver(receiver)) => refuse(receiver.span(), "a kernel cannot be a method"),
        _ => Ok(()),
    }
}

/// The bit mask of the parameters whose type is called `TensorMap`.
fn tensor_map_mask<'a>(inputs: impl Iterator<Item = &'a FnArg>) -> Result<u32> {
    let mut mask = 0;
    for (index, input) in inputs.enumerate() {
        let FnArg::Typed(parameter) = input else { continue };
        // A type that a `macro_rules!` macro was given arrives in a group of its own.
        let ty = if let Type::Group(group) = &*parameter.ty { &*group.elem } else { &*parameter.ty };
        let Type::Path(path) = ty else { continue };
        if path.path.segments.last().is_some_and(|segment| segment.ident == "TensorMap") {
            if index >= u32::BITS as usize {
                return Err(Error::new(parameter.span(), "a tensor map must be among the first 32 parameters"));
            }
            mask |= 1 << index;
        }
    }
    Ok(mask)
}

/// Replaces the patterns of the tensor maps by `_`; gives the statements that bind their names to their addresses.
///
/// LLVM calls parameter `i` of a kernel `<kernel>_param_<i>`. `symbol` is the name of the kernel where the function has
/// another.
fn bind_tensor_maps(sig: &mut Signature, tensor_maps: u32, symbol: Option<&Expr>) -> Result<TokenStream> {
    let mut statements = TokenStream::new();
    for (index, input) in sig.inputs.iter_mut().enumerate() {
        let FnArg::Typed(parameter) = input else { continue };
        if index >= u32::BITS as usize || tensor_maps & 1 << index == 0 {
            continue;
        }
        let Pat::Ident(name) = &*parameter.pat else {
            return Err(Error::new(parameter.pat.span(), "a tensor map needs a name, which becomes its address"));
        };
        let (name, ty) = (name.ident.clone(), &parameter.ty);
        let address = format!("_param_{index}; cvta.param.u64 {{0}}, t; }}}}");
        let template = match symbol {
            Some(symbol) => quote!(concat!("{{ .reg .b64 t; mov.b64 t, ", #symbol, #address)),
            None => {
                let template = format!("{{{{ .reg .b64 t; mov.b64 t, {}{address}", sig.ident);
                quote!(#template)
            }
        };
        statements.extend(quote! {
            let #name: *const #ty;
            // Takes the address of a parameter of this kernel.
            #[cfg(target_arch = "nvptx64")]
            #[allow(clippy::undocumented_unsafe_blocks)]
            unsafe {
                ::core::arch::asm!(#template, out(reg64) #name, options(pure, nomem, nostack, preserves_flags));
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                #name = ::core::ptr::null();
            }
        });
        *parameter.pat = syn::parse_quote!(_);
    }
    Ok(statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(arguments: TokenStream, item: TokenStream) -> String {
        expand(arguments, item).expect_err("the kernel is refused").to_string()
    }

    #[test]
    fn kernel_keeps_name_and_documents_and_gets_the_kernel_abi() {
        let expanded = expand(quote!(), quote! { #[doc = "Adds."] pub unsafe fn add(x: *mut f32) { body() } }).unwrap();
        let text = expanded.to_string();
        assert!(text.contains(r#"pub unsafe extern "gpu-kernel" fn add (x : * mut f32) { body () }"#), "{text}");
        assert!(text.contains(r#"# [doc = "Adds."]"#), "{text}");
        assert!(text.contains("static __kernel_record_add : [u32 ; 4] = [0 , 0 , 0 , 0u32]"), "{text}");
    }

    #[test]
    fn on_the_cpu_a_kernel_is_its_name_and_its_parameters() {
        let item = quote! { #[doc = "Adds."] #[inline] pub unsafe fn add(x: *mut f32, n: usize) { body() } };
        let text = expand(quote!(max_threads = 32), item.clone()).unwrap().to_string();
        let (_, entry) = text.split_once(r#"# [cfg (not (target_arch = "nvptx64"))]"#).unwrap();
        assert!(entry.contains(r#"# [doc = "Adds."] # [allow"#), "{entry}");
        assert!(entry.contains("pub const add : :: cuda_std :: Entry < unsafe fn (* mut f32 , usize) > ="), "{entry}");
        assert!(entry.contains("# [inline] unsafe fn add (x : * mut f32 , n : usize) { body () }"), "{entry}");
        assert!(entry.contains(r#":: cuda_std :: Entry :: new ("add" , add)"#), "{entry}");
        let named = expand(quote!(name = concat!("a", "b")), item).unwrap().to_string();
        assert!(named.contains(r#"Entry :: new (concat ! ("a" , "b") , add)"#), "{named}");
    }

    #[test]
    fn arguments_are_expressions() {
        let expanded = expand(
            quote!(max_threads = ROWS[3].threads(), min_blocks = 2),
            quote!(
                unsafe fn f() {}
            ),
        )
        .unwrap();
        let text = expanded.to_string();
        assert!(text.contains("(ROWS [3] . threads ()) as u64"), "{text}");
        assert!(text.contains("max_threads must be 1 to 1024"), "{text}");
    }

    #[test]
    fn a_name_of_its_own_is_that_of_the_function_the_record_and_the_parameters() {
        let item = quote!(
            unsafe fn f(map: TensorMap) {}
        );
        let text = expand(quote!(name = concat!("a", "b")), item).unwrap().to_string();
        assert!(text.contains(r#"[unsafe (export_name = concat ! ("a" , "b"))]"#), "{text}");
        assert!(text.contains(r#"export_name = concat ! ("__kernel_record_" , concat ! ("a" , "b"))"#), "{text}");
        assert!(text.contains(r#"mov.b64 t, " , concat ! ("a" , "b") , "_param_0;"#), "{text}");
    }

    #[test]
    fn tensor_maps_are_found_by_the_last_path_segment() {
        let item = quote!(
            unsafe fn f(a: u32, q: TensorMap, b: *const TensorMap, k: layout::TensorMap) {}
        );
        let text = expand(quote!(), item).unwrap().to_string();
        assert!(text.contains("10u32"), "{text}");
        assert!(
            text.contains("fn f (a : u32 , _ : TensorMap , b : * const TensorMap , _ : layout :: TensorMap)"),
            "{text}"
        );
        assert!(text.contains("let q : * const TensorMap") && text.contains("mov.b64 t, f_param_1;"), "{text}");
        assert!(text.contains("let k : * const layout :: TensorMap") && text.contains("f_param_3;"), "{text}");
    }

    #[test]
    fn misuse_is_refused() {
        assert!(
            error(
                quote!(),
                quote!(
                    fn f() {}
                )
            )
            .contains("must be an `unsafe fn`")
        );
        assert!(
            error(
                quote!(),
                quote!(
                    async unsafe fn f() {}
                )
            )
            .contains("async")
        );
        assert!(
            error(
                quote!(),
                quote!(
                    const unsafe fn f() {}
                )
            )
            .contains("const")
        );
        assert!(
            error(
                quote!(),
                quote!(
                    unsafe extern "C" fn f() {}
                )
            )
            .contains("ABI")
        );
        assert!(
            error(
                quote!(),
                quote!(
                    unsafe fn f<T>(x: T) {}
                )
            )
            .contains("generic")
        );
        assert!(
            error(
                quote!(),
                quote!(
                    unsafe fn f() -> u32 {}
                )
            )
            .contains("returns nothing")
        );
        assert!(
            error(
                quote!(),
                quote!(
                    unsafe fn f(&self) {}
                )
            )
            .contains("method")
        );
        assert!(
            error(
                quote!(threads = 1),
                quote!(
                    unsafe fn f() {}
                )
            )
            .contains("expected `max_threads`")
        );
        assert!(
            error(
                quote!(cluster = 1, cluster = 2),
                quote!(
                    unsafe fn f() {}
                )
            )
            .contains("twice")
        );
        assert!(
            error(
                quote!(min_blocks = 2),
                quote!(
                    unsafe fn f() {}
                )
            )
            .contains("needs `max_threads`")
        );
    }
}
